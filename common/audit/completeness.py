"""For one explorer: since when everything up to a batch has left the trainer.

Shape letters: `R` groups that left, `B` batches that these came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.audit.history import NO_END
from common.audit.records import Column


@dataclass(frozen=True, slots=True)
class Skip:
    """From some moment on, everything up to a batch counts as gone."""

    order: int
    """The moment: the record's place in what the present state descends from."""
    through: int
    """Sequence number of that batch."""
    groups: int
    """Groups in the batches up to it."""


_NOTHING_SKIPPED = Skip(-1, 0, 0)


class Completeness:
    """Batches of one explorer, in what the run's present state descends from."""

    def __init__(
        self, sequence: Column, ordinal: Column, batch_groups: Column, order: Column, skips: Sequence[Skip] = ()
    ) -> None:
        """The columns are int64 `[R]`; `order` as in `GroupTable`."""
        _, distinct = np.unique(ordinal, return_index=True)
        self.rows = sequence[distinct], order[distinct]
        """Sequence number and order of each group, once."""
        self.skips = tuple(sorted(skips, key=lambda skip: skip.order))
        self.sequences, first, index = np.unique(sequence[distinct], return_index=True, return_inverse=True)
        """int64 `[B]`."""
        self.sizes = batch_groups[distinct][first]
        """int64 `[B]`: groups that each of these holds."""
        self.gone = np.bincount(index, minlength=len(self.sequences)).astype(np.int64)
        """int64 `[B]`: groups of it that have left."""
        last = np.full(len(self.sequences), -1, np.int64)
        np.maximum.at(last, index, order[distinct])
        self._complete = np.where(self.gone >= self.sizes, last, NO_END)
        self._groups = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])
        self._complete_since: dict[int, Column] = {}

    def first_missing(self, frontier: int, at: int = NO_END) -> int | None:
        """The first batch up to the frontier of which, at that moment, not everything had left; None: there is none."""
        base = self.skipped(at).through
        if frontier <= base:
            return None
        begin, end = self._range(base, frontier)
        if end - begin == frontier - base and self._since(begin)[end - begin - 1] <= at:
            return None
        there = self.sequences[begin:end][self._complete[begin:end] <= at]
        gaps = np.flatnonzero(there != base + 1 + np.arange(len(there)))
        return base + 1 + int(gaps[0] if len(gaps) else len(there))

    def groups_through(self, frontier: int, at: int = NO_END) -> int:
        """Groups in the batches up to the frontier, when nothing is missing there."""
        skip = self.skipped(at)
        begin, end = self._range(skip.through, frontier)
        return skip.groups + int(self._groups[end] - self._groups[begin])

    def left_between(self, after: int, through: int, before: int = NO_END) -> int:
        """Groups of these batches that had left before that moment."""
        sequence, order = self.rows
        return int(((sequence > after) & (sequence <= through) & (order < before)).sum())

    def of_batch(self, sequence: int) -> tuple[int, int] | None:
        """(groups that have left, groups that it holds) of a batch; None when no group of it has left."""
        place = int(np.searchsorted(self.sequences, sequence))
        if place == len(self.sequences) or self.sequences[place] != sequence:
            return None
        return int(self.gone[place]), int(self.sizes[place])

    def skipped(self, at: int) -> Skip:
        """The furthest skip until that moment."""
        reached = [skip for skip in self.skips if skip.order <= at]
        return max(reached, key=lambda skip: skip.through, default=_NOTHING_SKIPPED)

    def _range(self, after: int, through: int) -> tuple[int, int]:
        begin, end = np.searchsorted(self.sequences, [after, through], side="right")
        return int(begin), int(end)

    def _since(self, begin: int) -> Column:
        """For each batch from there on: since when it and those from there up to it are complete."""
        if begin not in self._complete_since:
            self._complete_since[begin] = np.maximum.accumulate(self._complete[begin:])
        return self._complete_since[begin]
