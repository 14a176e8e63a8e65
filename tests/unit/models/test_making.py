"""Models made from `model.architecture`."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from common.config.model import ModelConfig
from common.errors import ConfigError
from common.models.causal_lm import end_token_ids, load_model
from common.models.tokenizer import load_tokenizer

LLAMA = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def config(**changes: Any) -> ModelConfig:
    architecture = {**LLAMA, "intermediate_size": 32, **changes}
    return ModelConfig(architecture=architecture, tokenizer="characters:abc", max_length=64)


def make(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return load_model(config(**changes), seed=seed, dtype=dtype)


def test_one_seed_makes_one_model() -> None:
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_threads_that_make_a_model_at_once_make_the_same_one() -> None:
    alone = make(seed=3).state_dict()
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda _: make(seed=3).state_dict(), range(8)))
    assert all(torch.equal(tensor, made[name]) for made in together for name, tensor in alone.items())


def test_the_global_random_state_stays_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make(seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_bfloat16_weights_are_the_float32_ones_rounded() -> None:
    wide, narrow = make(), make(dtype=torch.bfloat16)
    for name, tensor in wide.state_dict().items():
        assert narrow.state_dict()[name].dtype == torch.bfloat16
        assert torch.equal(narrow.state_dict()[name], tensor.to(torch.bfloat16))
    assert narrow.config.dtype == torch.bfloat16


def test_rotary_frequencies_keep_their_precision() -> None:
    frequencies = make(dtype=torch.bfloat16).model.rotary_emb.inv_freq
    # 10000^(-2i/d) with d = 8 dimensions a head (Su et al. 2021, section 3.2.2)
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]), rtol=1e-6, atol=0)


def test_the_tokenizer_gives_vocabulary_and_special_tokens() -> None:
    model = make()
    assert model.config.vocab_size == 5  # <pad>, <eos>, a, b, c
    assert (model.config.pad_token_id, model.config.eos_token_id, model.config.bos_token_id) == (0, 1, None)
    assert end_token_ids(model, load_tokenizer(config())) == {1}


def test_what_the_architecture_says_wins_over_the_tokenizer() -> None:
    assert make(vocab_size=8).config.vocab_size == 8


def test_every_end_token_of_the_generation_config_counts() -> None:
    model = make()
    model.generation_config.eos_token_id = [2, 3]
    assert end_token_ids(model, load_tokenizer(config())) == {1, 2, 3}
    model.generation_config.eos_token_id = None
    assert end_token_ids(model, load_tokenizer(config())) == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, r"model\.architecture\.model_type.*'lama'"),
        ({"model_type": None}, r"model\.architecture\.model_type: None"),
        ({"model_type": "t5"}, r"model\.architecture"),
        ({"hiden_size": 16}, r"model\.architecture\.hiden_size.*did you mean 'hidden_size'"),
        ({"hidden_size": "wide"}, r"model\.architecture.*hidden_size"),
        ({"hidden_size": 17}, r"model\.architecture.*17"),
        ({"vocab_size": 4}, r"model\.tokenizer: it has 5 tokens.*vocab_size of 4"),
        ({"max_position_embeddings": 63}, r"model\.max_length: 64.*63 positions"),
    ],
)
def test_an_impossible_architecture_is_refused_by_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        make(**changes)
    assert len(str(raised.value)) < 1000


def test_scaled_rotary_positions_allow_longer_sequences() -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    assert make(max_position_embeddings=32, rope_parameters=rope) is not None
