"""The skills, and which strings of digits are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from common.errors import ConfigError
from explorer_service.tasksets.mixing import mix

Split: TypeAlias = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")

SKILLS: Mapping[str, Callable[[str], str]] = {
    "s": lambda digits: "".join(sorted(digits)),
    "r": lambda digits: digits[::-1],
    "c": lambda digits: digits,
    "d": lambda digits: "".join(sorted(digits, reverse=True)),
}
"""By letter: sort, reverse, copy, sort down."""

HELD_OUT_ONE_IN = 8
MAX_DIGITS = 6
"""A split is listed in full: a million strings of six digits are cheap, ten million of seven are not."""


def split_values(digits: int, split: Split) -> npt.NDArray[np.int64]:
    """All strings of that many digits in the split, as numbers, ascending. Raises ConfigError for impossible arguments."""
    if not 1 <= digits <= MAX_DIGITS:
        raise ConfigError(f"digit_skills: `digits` is {digits}, allowed are 1 to {MAX_DIGITS}")
    if split not in SPLITS:
        raise ConfigError(f"digit_skills: `split` is {split!r}, allowed are {', '.join(SPLITS)}")
    held_out = _held_out(np.arange(10**digits, dtype=np.uint64), digits)
    return np.flatnonzero(held_out if split == "held_out" else ~held_out)


def is_held_out(digits: str) -> bool:
    """Whether that string of digits is kept from training."""
    return bool(_held_out(np.array([int(digits)], np.uint64), len(digits))[0])


def _held_out(values: npt.NDArray[np.uint64], digits: int) -> npt.NDArray[np.bool_]:
    # A leading 1 tells `012` from `12`.
    held_out: npt.NDArray[np.bool_] = mix(values + np.uint64(10**digits)) % np.uint64(HELD_OUT_ONE_IN) == 0
    return held_out
