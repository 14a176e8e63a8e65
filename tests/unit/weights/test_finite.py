import math

import pytest
import torch

from common.errors import NonFiniteWeights
from common.weights.finite import finite_bytes
from common.weights.manifest import DTYPE_NAMES, build_manifest, tensor_bytes
from common.weights.receive import WeightAssembly, check_finite
from common.weights.shards import chunks

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_bad_value_anywhere_is_found_and_its_tensor_named(dtype: torch.dtype, value: float, place: int) -> None:
    bad = torch.ones(1000, dtype=dtype)
    bad[place] = value

    with pytest.raises(NonFiniteWeights, match="'bad'"):
        check_finite({"good": torch.ones(3, dtype=dtype), "bad": bad.reshape(10, 100), "worse": bad})


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_finite_values_pass(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max

    check_finite({"edges": torch.tensor([largest] * 100 + [-largest] * 100, dtype=dtype)})


def test_integers_bools_and_empty_tensors_pass() -> None:
    check_finite({"i": torch.tensor([2**62]), "b": torch.tensor([True]), "e": torch.zeros(0)})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_bad_value_anywhere_is_found_in_the_bytes(dtype: torch.dtype, value: float, place: int) -> None:
    values = torch.linspace(-3, 3, 1000).to(dtype)
    assert finite_bytes(tensor_bytes(values).numpy(), DTYPE_NAMES[dtype])

    values[place] = value

    assert not finite_bytes(tensor_bytes(values).numpy(), DTYPE_NAMES[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_bytes_of_the_largest_finite_values_and_of_both_zeros_pass(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    edges = torch.tensor([largest, -largest, 0.0, -0.0], dtype=dtype)

    assert finite_bytes(tensor_bytes(edges).numpy(), DTYPE_NAMES[dtype])


def test_bytes_of_integers_and_bools_are_always_finite() -> None:
    assert finite_bytes(tensor_bytes(torch.full((9,), -1)).numpy(), "I64")
    assert finite_bytes(tensor_bytes(torch.tensor([True])).numpy(), "BOOL")


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_bad_value_that_arrives_in_pieces_is_found_and_its_tensor_named(dtype: torch.dtype, chunk_bytes: int) -> None:
    tensors = {
        "a": torch.tensor([1], dtype=torch.uint8),
        "b": torch.tensor([2.0, math.inf, 1.0], dtype=dtype),
        "c": torch.tensor([math.nan], dtype=dtype),
    }
    manifest = build_manifest(tensors)
    assembly = WeightAssembly(manifest, manifest.total_bytes)

    for chunk in chunks(torch.cat([tensor_bytes(tensor) for tensor in tensors.values()]), 0, chunk_bytes):
        assembly.write(chunk.offset, chunk.xxh3, chunk.data)

    assert assembly.finish().not_finite == "b"
