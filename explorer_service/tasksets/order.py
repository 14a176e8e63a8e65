"""The order in which the tasks of a taskset are done: a pure function of a position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from common.errors import ConfigError
from explorer_service.tasksets.mixing import permutation


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """Maps a position in an explorer's stream of tasks to a task's index.

    It has no state: an explorer that restarts goes on at the position it has durable. Shard i of n takes every n-th
    task of each epoch's order, so that all shards together do each task once an epoch, whatever their speeds.
    """

    length: int
    """Tasks in the taskset."""
    shuffle: bool
    """A new order each epoch."""
    epochs: int | None
    """Passes; None: endless."""
    seed: int
    """Of the shuffling; shards of one run share it."""
    shard_index: int = 0
    """Which shard this is."""
    shard_count: int = 1
    """How many there are."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError("the taskset has no tasks")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"a taskset is done at least once, not {self.epochs} times")
        if not 0 <= self.shard_index < self.shard_count:
            raise ConfigError(f"shard {self.shard_index} of {self.shard_count} does not exist")
        if self.shard_index >= self.length:
            raise ConfigError(f"shard {self.shard_index} has no task: the taskset has {self.length}")

    @property
    def epoch_length(self) -> int:
        """Tasks of one epoch in this shard."""
        return (self.length - self.shard_index - 1) // self.shard_count + 1

    @property
    def total(self) -> int | None:
        """Positions in all; None: endless."""
        return None if self.epochs is None else self.epochs * self.epoch_length

    def position(self, n: int) -> int:
        """Index of the task at position n, counted from 0. Raises IndexError past the end."""
        if n < 0 or (self.total is not None and n >= self.total):
            raise IndexError(f"position {n} of {self.total}")
        epoch, step = divmod(n, self.epoch_length)
        place = self.shard_index + step * self.shard_count
        return int(_epoch_order(self.length, self.seed, epoch)[place]) if self.shuffle else place

    def shard(self, index: int, count: int) -> Self:
        """The share of one of `count` explorers. Raises ConfigError when it would be empty."""
        if self.shard_count != 1:
            raise ConfigError("a shard is not divided again")
        return replace(self, shard_index=index, shard_count=count)


# Two orders: groups of an old epoch's end may be asked for beside those of the new one.
@lru_cache(maxsize=2)
def _epoch_order(length: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return permutation(length, seed, epoch)
