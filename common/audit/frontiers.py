"""Frontiers: what a checkpoint, or an acknowledgement, says has left is what the records say has left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from common.audit.completeness import Completeness, Skip
from common.audit.findings import Finding, Violation
from common.audit.group_table import GroupTable
from common.audit.history import History
from common.audit.ledger_files import Entry
from common.audit.records import Frontier, Saved, Skipped, Start


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that the present state descends from, and where a ledger tells of it."""

    epoch: int
    entry: Entry
    place: int
    """Of the last record before it, among those that the present state descends from; -1: none is."""
    frontiers: Mapping[str, Frontier]
    told: str
    """What it is, for people."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a ledger speaks of an explorer."""

    epoch: int
    entry: Entry
    explorer: str

    def finding(self, violation: Violation, message: str, sequence: int) -> Finding:
        return Finding(
            violation, message, epoch=self.epoch, line=self.entry.line + 1, explorer=self.explorer, sequence=sequence
        )


class Frontiers:
    """Of all explorers of one stage."""

    def __init__(self, history: History, table: GroupTable) -> None:
        self._history = history
        self.skips: list[tuple[int, Entry, int]] = []
        """(run epoch, record, place) of each skip that the present state descends from."""
        self.checkpoints: list[Checkpoint] = []
        """In the order in which they were taken."""
        self.met: set[str] = set()
        """Explorers of which the newest start has heard."""
        self._walk()
        self.explorers = {name: self._completeness(table, name) for name in table.explorers}
        for _, entry, _ in self.skips:
            if isinstance(entry.record, Skipped) and entry.record.explorer not in self.explorers:
                self.explorers[entry.record.explorer] = self._completeness(table, entry.record.explorer)
        self.allowed = self._acknowledgeable(table)
        """The highest sequence number that a trainer may ever have acknowledged, by explorer."""
        newest = history.newest.epoch if history.newest is not None else 0
        of_newest = table.columns["explorer"][table.of_epoch() == newest]
        self.met |= {table.explorers[index] for index in set(of_newest.tolist())}

    def of(self, explorer: str) -> Completeness:
        """Of one explorer, of which there may be no record."""
        if explorer not in self.explorers:
            self.explorers[explorer] = _nothing()
        return self.explorers[explorer]

    def newest(self, explorer: str) -> int:
        """Its frontier in the newest checkpoint that the present state descends from."""
        found = [one.frontiers[explorer].sequence for one in self.checkpoints if explorer in one.frontiers]
        return max(found, default=0)

    def findings(self) -> Iterator[Finding]:
        """Of checkpoints and of skips."""
        reported: set[tuple[str, int]] = set()
        before: dict[str, int] = {}
        for checkpoint in self.checkpoints:
            for explorer, frontier in checkpoint.frontiers.items():
                yield from self._check(checkpoint, explorer, frontier, before.get(explorer, 0), reported)
                before[explorer] = frontier.sequence
        for epoch, entry, place in self.skips:
            if isinstance(entry.record, Skipped):
                yield from self._check_skip(epoch, entry, entry.record, place)

    def missing(self, explorer: str, sequence: int, below: str) -> Finding:
        """A batch of which not everything has left."""
        known = self.of(explorer).of_batch(sequence)
        there = "nothing of it" if known is None else f"{known[0]} of its {known[1]} groups"
        message = f"batch {sequence} of {explorer} is below {below}, and there is a record of {there}"
        return Finding(Violation.MISSING, message, explorer=explorer, sequence=sequence)

    def _walk(self) -> None:
        newest = self._history.newest
        place = -1
        for link in self._history.chain(newest.epoch) if newest is not None else ():
            epoch, places = link.ledger.epoch, {-1: place}
            start = self._history.start(epoch)
            if start.resumed is not None:
                told = f"the checkpoint of step {start.resumed.step} that run epoch {epoch} went on from"
                entry = link.ledger.entries[0]
                self.checkpoints.append(Checkpoint(epoch, entry, place, start.frontiers, told))
            for entry in link.entries():
                place += 1
                places[entry.number] = place
                if isinstance(entry.record, Skipped):
                    self.skips.append((epoch, entry, place))
                    if newest is link.ledger:
                        self.met.add(entry.record.explorer)
            # Its record comes later than the checkpoint was taken, and may be beyond what counts.
            for entry in link.ledger.entries:
                saved = entry.record
                if isinstance(saved, Saved) and saved.record <= link.last and saved.record in places:
                    told = f"the checkpoint of step {saved.step}"
                    self.checkpoints.append(Checkpoint(epoch, entry, places[saved.record], saved.frontiers, told))

    def _completeness(self, table: GroupTable, explorer: str) -> Completeness:
        skips = [
            Skip(place, entry.record.through, entry.record.groups)
            for _, entry, place in self.skips
            if isinstance(entry.record, Skipped) and entry.record.explorer == explorer
        ]
        if explorer not in table.explorers:
            return _nothing(skips)
        rows = (table.columns["explorer"] == table.explorers.index(explorer)) & table.alive
        sequence, ordinal, size = (table.columns[name][rows] for name in ("sequence", "ordinal", "batch_groups"))
        return Completeness(sequence, ordinal, size, table.order[rows], skips)

    def _acknowledgeable(self, table: GroupTable) -> dict[str, int]:
        allowed: dict[str, int] = {}
        by_steps = [e.epoch for e in self._history.ledgers if self._history.start(e.epoch).acknowledges_steps]
        if by_steps:
            counts = table.of_epoch() <= max(by_steps)
            for index, name in enumerate(table.explorers):
                sequences = table.columns["sequence"][counts & (table.columns["explorer"] == index)]
                allowed[name] = int(sequences.max(initial=0))
        for ledger in self._history.ledgers:
            for entry in ledger.entries:
                if isinstance(entry.record, Start | Saved):
                    for name, frontier in entry.record.frontiers.items():
                        allowed[name] = max(allowed.get(name, 0), frontier.sequence)
        return allowed

    def _check(
        self, checkpoint: Checkpoint, explorer: str, frontier: Frontier, before: int, reported: set[tuple[str, int]]
    ) -> Iterator[Finding]:
        place = _Place(checkpoint.epoch, checkpoint.entry, explorer)
        if frontier.sequence < before:
            message = f"{checkpoint.told} has {explorer} at batch {frontier.sequence}, the one before at {before}"
            yield place.finding(Violation.FRONTIER_WENT_BACK, message, frontier.sequence)
        completeness = self.of(explorer)
        missing = completeness.first_missing(frontier.sequence, checkpoint.place)
        if missing is not None:
            if (explorer, missing) not in reported:
                reported.add((explorer, missing))
                told = f"the frontier {frontier.sequence} of {checkpoint.told}"
                found = self.missing(explorer, missing, told)
                yield place.finding(found.violation, found.message, missing)
            return
        groups = completeness.groups_through(frontier.sequence, checkpoint.place)
        if groups != frontier.groups:
            message = (
                f"{checkpoint.told} counts {frontier.groups} groups of {explorer} up to batch {frontier.sequence}, "
                f"the records {groups}"
            )
            yield place.finding(Violation.MISCOUNTED, message, frontier.sequence)

    def _check_skip(self, epoch: int, entry: Entry, skipped: Skipped, place: int) -> Iterator[Finding]:
        explorer, through = skipped.explorer, skipped.through
        where = _Place(epoch, entry, explorer)
        if through > self.allowed.get(explorer, 0):
            message = f"{explorer} has forgotten its batches up to {through}, which nobody can have acknowledged"
            yield where.finding(Violation.ACKNOWLEDGED_TOO_EARLY, message, through)
        completeness = self.of(explorer)
        earlier = completeness.skipped(place - 1)
        left = earlier.groups + completeness.left_between(earlier.through, through, place)
        if skipped.lost != skipped.groups - left:
            message = (
                f"{explorer} has forgotten {skipped.groups} groups up to batch {through}, {left} of which had left: "
                f"{skipped.groups - left} are lost, not {skipped.lost}"
            )
            yield where.finding(Violation.MISCOUNTED, message, through)


def _nothing(skips: list[Skip] | None = None) -> Completeness:
    empty = np.zeros(0, np.int64)
    return Completeness(empty, empty, empty, empty, skips or ())
