"""The order in which the tasks of a taskset are done: a pure function of a position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

from common.errors import ConfigError
from explorer_service.tasksets.mixing import permutation


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """Maps a position in a run's order of tasks to a task's index.

    It has no state, and is the same at all explorers of a run: the trainer deals the positions out to them.
    """

    length: int
    """Tasks in the taskset."""
    shuffle: bool
    """A new order each epoch."""
    epochs: int | None
    """Passes; None: endless."""
    seed: int
    """Of the shuffling."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError("the taskset has no tasks")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"a taskset is done at least once, not {self.epochs} times")

    @property
    def total(self) -> int | None:
        """Positions in all; None: endless."""
        return None if self.epochs is None else self.epochs * self.length

    @property
    def fingerprint(self) -> str:
        """Hex; equal where the same position means the same index."""
        return xxhash.xxh3_128_hexdigest(repr((self.length, self.shuffle and self.seed, self.epochs)).encode())

    def position(self, n: int) -> int:
        """Index of the task at position n, counted from 0. Raises IndexError past the end."""
        if n < 0 or (self.total is not None and n >= self.total):
            raise IndexError(f"position {n} of {self.total}")
        epoch, place = divmod(n, self.length)
        return int(_epoch_order(self.length, self.seed, epoch)[place]) if self.shuffle else place


# Two orders: groups of an old epoch's end may be asked for beside those of the new one.
@lru_cache(maxsize=2)
def _epoch_order(length: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return permutation(length, seed, epoch)
