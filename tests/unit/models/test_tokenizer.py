"""Tokenizers and their fingerprint."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from common.config.model import ModelConfig
from common.errors import ConfigError
from common.models.causal_lm import load_model
from common.models.tokenizer import character_tokenizer, load_tokenizer, tokenizer_hash

LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def test_every_character_is_one_token() -> None:
    tokenizer = character_tokenizer("ab =\n\u00e9")
    assert len(tokenizer) == 8
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.encode("b a\n=\u00e9") == [3, 4, 2, 6, 5, 7]
    assert tokenizer.decode([3, 4, 4, 2, 6, 5, 7]) == "b  a\n=\u00e9"
    assert tokenizer.decode([3, 1, 0], skip_special_tokens=True) == "b"


def test_an_unknown_character_raises_instead_of_becoming_another_token() -> None:
    with pytest.raises(Exception, match="UNK"):
        character_tokenizer("abc").encode("abx")


@pytest.mark.parametrize("characters", ["", "aba"])
def test_characters_must_be_given_once_each(characters: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.tokenizer: characters:"):
        load_tokenizer(ModelConfig(path="gpt2", tokenizer=f"characters:{characters}"))


def test_a_saved_tokenizer_is_the_same_again_beside_its_model(tmp_path: Path) -> None:
    config = ModelConfig(architecture=LLAMA, tokenizer="characters:abc =", max_length=64)
    tokenizer = load_tokenizer(config)
    load_model(config, seed=0, dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for again in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(ModelConfig(path=str(tmp_path)))):
        assert again.encode("c a=") == tokenizer.encode("c a=") == [4, 5, 2, 6]
        assert again.decode([4, 5, 2]) == "c a"
        assert tokenizer_hash(again) == tokenizer_hash(tokenizer)


def test_the_fingerprint_tells_vocabularies_apart() -> None:
    hashes = {tokenizer_hash(character_tokenizer(text)) for text in ("abc", "acb", "abcd", "abc ")}
    assert len(hashes) == 4


def test_the_fingerprint_tells_end_tokens_apart() -> None:
    first, second = character_tokenizer("abc"), character_tokenizer("abc")
    second.eos_token = "a"  # noqa: S105 - a token
    assert tokenizer_hash(first) != tokenizer_hash(second)


def test_the_fingerprint_tells_rules_apart() -> None:
    first, second = character_tokenizer("abc"), character_tokenizer("abc")
    second.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert tokenizer_hash(first) != tokenizer_hash(second)


def test_padding_a_batch_does_not_change_the_fingerprint() -> None:
    tokenizer = character_tokenizer("abc")
    before = tokenizer_hash(tokenizer)
    tokenizer(["a", "abc"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(tokenizer) == before


def _bare(folder: Path, **special: str) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "end": 2}, unk_token="a"))  # noqa: S106 - a token
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    _bare(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.tokenizer: .*no end token"):
        load_tokenizer(ModelConfig(path="gpt2", tokenizer=str(tmp_path)))


def test_a_missing_padding_token_becomes_the_end_token(tmp_path: Path) -> None:
    _bare(tmp_path, eos_token="end")  # noqa: S106 - a token
    tokenizer = load_tokenizer(ModelConfig(path="gpt2", tokenizer=str(tmp_path)))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2


def test_a_folder_without_a_tokenizer_is_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path: cannot load a tokenizer"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))
