"""Weights out of a model and into it."""

from typing import Any

import pytest
import torch

from common.config.model import ModelConfig
from common.errors import ManifestMismatch
from common.models.causal_lm import load_model, load_rollout_state, rollout_state


class Buffered(torch.nn.Module):
    """A parameter that is not contiguous, a tie, and buffers of each kind."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.first = torch.nn.Parameter(torch.randn(2, 3, generator=random).T)
        self.second = self.first
        self.register_buffer("counts", torch.tensor([3, 4]))
        self.register_buffer("scale", torch.tensor([0.1]))
        self.register_buffer("scratch", torch.tensor([1.0]), persistent=False)


def tied_llama(seed: int = 0) -> Any:
    architecture = {
        "model_type": "llama",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "tie_word_embeddings": True,
    }
    config = ModelConfig(architecture=architecture, tokenizer="characters:abc", max_length=64)
    return load_model(config, seed=seed, dtype=torch.float32)


def test_tied_tensors_appear_once_under_their_first_name() -> None:
    state = rollout_state(tied_llama(), torch.float32)
    assert "model.embed_tokens.weight" in state
    assert "lm_head.weight" not in state


def test_only_floating_tensors_are_cast() -> None:
    state = rollout_state(Buffered(), torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "first": torch.bfloat16,
        "counts": torch.int64,
        "scale": torch.bfloat16,
    }


def test_every_tensor_is_contiguous_and_detached() -> None:
    model = Buffered()
    assert not model.first.is_contiguous()
    for tensor in rollout_state(model, torch.float32).values():
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        assert tensor.device.type == "cpu"


@pytest.mark.parametrize("make", [Buffered, tied_llama])
def test_weights_arrive_bit_by_bit_in_place(make: Any) -> None:
    source, target = make(seed=1), make(seed=2)
    addresses = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
    load_rollout_state(target, rollout_state(source, torch.float32))
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name])
        assert tensor.data_ptr() == addresses[name]


def test_a_tie_is_taken_under_any_of_its_names() -> None:
    model = tied_llama(seed=1)
    state = rollout_state(tied_llama(seed=2), torch.float32)
    state["lm_head.weight"] = state.pop("model.embed_tokens.weight")
    load_rollout_state(model, state)
    assert torch.equal(model.model.embed_tokens.weight, state["lm_head.weight"])


def test_the_model_keeps_its_dtype() -> None:
    model, state = Buffered(seed=1), rollout_state(Buffered(seed=2), torch.bfloat16)
    load_rollout_state(model, state)
    assert model.first.dtype == torch.float32
    assert torch.equal(model.first, state["first"].float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": None}, "missing scale"),
        ({"other": torch.zeros(1)}, "unknown other"),
        ({"scratch": torch.zeros(1)}, "unknown scratch"),
        ({"scale": torch.zeros(2)}, r"'scale' is torch\.float32 \(2,\)"),
        ({"scale": torch.zeros(1, dtype=torch.int64)}, r"'scale' is torch\.int64"),
        ({"counts": torch.zeros(2)}, r"'counts' is torch\.float32"),
    ],
)
def test_tensors_of_another_layout_change_nothing(change: dict[str, torch.Tensor | None], message: str) -> None:
    model = Buffered(seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    changed = {**rollout_state(Buffered(seed=2), torch.float32), **change}
    with pytest.raises(ManifestMismatch, match=message):
        load_rollout_state(model, {name: tensor for name, tensor in changed.items() if tensor is not None})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
