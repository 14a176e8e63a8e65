import math

import pytest
import torch

from common.errors import NonFiniteWeights
from common.weights.receive import check_finite

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
