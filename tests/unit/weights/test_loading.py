"""Tensors copied over a model's, and the hash of what lies there then."""

import pytest
import torch
import xxhash

from common.weights.loading import PIECE_BYTES, copy_hashed, with_hashes
from common.weights.manifest import build_manifest


def digest(tensor: torch.Tensor) -> bytes:
    raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
    return xxhash.xxh3_128_digest(raw)


@pytest.mark.parametrize(
    "source",
    [
        torch.arange(12, dtype=torch.float32).reshape(3, 4),
        torch.arange(12, dtype=torch.float32).reshape(3, 4).T,
        torch.tensor(2.5),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.arange(PIECE_BYTES // 2 + 3, dtype=torch.int32).to(torch.int16),
    ],
    ids=["plain", "transposed", "scalar", "empty", "bool", "pieces"],
)
def test_the_hash_is_that_of_what_was_copied(source: torch.Tensor) -> None:
    target = torch.zeros_like(source)
    assert copy_hashed(target, source) == digest(source)
    assert torch.equal(target, source)


def test_a_strided_target_is_filled_through_its_strides() -> None:
    whole = torch.zeros(4, 6)
    source = torch.arange(8, dtype=torch.float32).reshape(4, 2)
    assert copy_hashed(whole[:, ::3], source) == digest(source)
    assert whole.sum() == source.sum()
    assert torch.equal(whole[:, ::3], source)


def test_of_another_dtype_the_values_held_are_hashed_in_the_sources() -> None:
    source = torch.tensor([1.0, 2**-30, 65504.0 * 2])
    target = torch.zeros(3, dtype=torch.bfloat16)
    assert copy_hashed(target, source) == digest(source.bfloat16().float())
    assert copy_hashed(target, source) != digest(torch.tensor([1.0, 0.0, 0.0]))


def test_a_trained_parameter_is_written_in_place() -> None:
    target = torch.nn.Parameter(torch.zeros(3))
    source = torch.tensor([1.0, -0.0, float("nan")])
    assert copy_hashed(target, source) == digest(source)
    assert target.requires_grad
    assert target.grad_fn is None


def test_a_layout_with_new_hashes_is_the_manifest_of_the_new_tensors() -> None:
    old = {"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}
    new = {"a": torch.ones(3), "b": torch.full((2, 2), 3.0, dtype=torch.bfloat16)}
    hashes = {name: digest(tensor) for name, tensor in new.items()}
    assert with_hashes(build_manifest(old), hashes) == build_manifest(new)
