"""Stable pseudo-random numbers from integers.

The order of tasks and the split into train and held-out outlive a process and a numpy version, so they come from a
fixed formula and not from a library's generator, whose stream may change between versions (NEP 19).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
# Sebastiano Vigna's splitmix64, https://prng.di.unimi.it/splitmix64.c: a bijection of 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64 of each value; uint64 in and out, any shape."""
    mixed = values + np.uint64(_GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return mixed ^ (mixed >> np.uint64(31))


def permutation(length: int, *key: int) -> npt.NDArray[np.int64]:
    """A permutation of 0 to length - 1 that depends on the key alone; int64 `[length]`."""
    state = np.zeros(1, np.uint64)
    for part in key:
        state = mix(state ^ np.uint64(part & _MASK))
    return np.argsort(mix(mix(np.arange(length, dtype=np.uint64)) ^ state), kind="stable")
