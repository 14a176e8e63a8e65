import numpy as np
import pytest
import torch

from common.errors import LimitExceeded
from common.weights.buffers import BufferPool


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_nobody_sees_it() -> None:
    pool = BufferPool()
    first = pool.take(1 << 20)
    where = address(first)
    del first

    assert address(pool.take(1 << 20)) == where


def test_memory_that_a_tensor_still_views_is_never_lent_again() -> None:
    pool = BufferPool()
    first = pool.take(1 << 20)
    first[:] = 7
    view = torch.from_numpy(first)[10:20].view(torch.int16)
    where = address(first)
    del first

    second = pool.take(1 << 20)
    second[:] = 1

    assert address(second) != where
    assert view.tolist() == [0x0707] * 5


def test_another_size_gets_memory_of_that_size() -> None:
    pool = BufferPool()
    pool.take(100)

    assert pool.take(10).shape == (10,)
    assert pool.take(200).shape == (200,)


def test_a_size_beyond_all_memory_is_a_limit_not_a_crash() -> None:
    with pytest.raises(LimitExceeded, match="no memory"):
        BufferPool().take(1 << 62)
