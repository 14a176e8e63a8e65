"""Models loaded from folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.config.model import ModelConfig
from common.errors import ConfigError
from common.models.causal_lm import load_model
from common.models.tokenizer import load_tokenizer

MADE = ModelConfig(
    architecture={
        "model_type": "llama",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    tokenizer="characters:abc",
    max_length=64,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    load_model(MADE, seed=0, dtype=torch.float32).save_pretrained(tmp_path)
    load_tokenizer(MADE).save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path, **changes: Any) -> Any:
    return load_model(ModelConfig(path=str(folder), **changes), seed=1, dtype=torch.float32)


def test_a_saved_model_is_loaded_bit_by_bit(folder: Path) -> None:
    loaded = load(folder).state_dict()
    expected = load_model(MADE, seed=0, dtype=torch.float32).state_dict()
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_a_model_is_loaded_in_the_wanted_dtype(folder: Path) -> None:
    model = load_model(ModelConfig(path=str(folder)), seed=0, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}


def test_a_missing_tensor_is_refused_not_drawn_at_random(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.path.*lack tensors: model\.norm\.weight"):
        load(folder)


def test_a_torn_file_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model\.path"):
        load(folder)


def test_pickled_weights_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(ConfigError, match=r"model\.path.*safetensors"):
        load(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path: cannot load"):
        load(tmp_path)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.tokenizer: it has 6 tokens.*vocab_size of 5"):
        load(folder, tokenizer="characters:abcd")


def test_longer_sequences_than_the_model_has_positions_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.max_length: 4096.*2048 positions"):
        load(folder, max_length=4096)
