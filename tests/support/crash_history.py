"""A toy run that crashes at drawn moments, and the ledgers that its trainer leaves: written without any code of a service.

Everything is spelled out: which weights descend from which is a set of names, and what has left is a set of ordinals.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from common.audit.ledger_files import EpochLedger
from common.audit.records import Record, Skipped
from common.audit.spools import SpoolView
from common.spool_file import SpoolContents
from tests.support.hand_ledgers import Row, dropped, ledger, saved, start, step

Version = tuple[int, int]
"""(run epoch, step)."""
GROUPS_A_STEP = 2
MAX_STALENESS = 3


@dataclass
class ToyExplorer:
    """Makes batches, and forgets those that are acknowledged."""

    name: str
    weights: Version = (1, 0)
    batches: dict[int, list[Row]] = field(default_factory=dict)
    """All that it ever made."""
    next_ordinal: int = 0
    acknowledged: int = 0

    def make(self, groups: int) -> None:
        number = len(self.batches) + 1
        ordinals = range(self.next_ordinal, self.next_ordinal + groups)
        self.next_ordinal += groups
        self.batches[number] = [Row(number, ordinal, groups, self.weights, None, self.name) for ordinal in ordinals]

    def groups_through(self, sequence: int) -> int:
        return sum(len(rows) for number, rows in self.batches.items() if number <= sequence)


@dataclass
class State:
    """What a checkpoint holds."""

    step: int = 0
    weights: Version = (0, 0)
    """The name under which these weights were first known."""
    ancestors: set[Version] = field(default_factory=lambda: {(0, 0)})
    gone: dict[str, set[int]] = field(default_factory=dict)
    """Ordinals that have left, by explorer."""
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass
class Checkpoint:
    epoch: int
    record: int
    state: State
    frontiers: dict[str, tuple[int, int]]


class CrashHistory:
    """Draws what happens from `pick`; `by_steps`: there are no checkpoints, and each step is acknowledged."""

    def __init__(self, pick: random.Random, explorers: int, happenings: int, *, by_steps: bool) -> None:
        self.pick = pick
        self.by_steps = by_steps
        self.explorers = [ToyExplorer(f"e{number}") for number in range(explorers)]
        self.epochs: list[list[Record]] = []
        self.checkpoints: list[Checkpoint] = []
        self.first_names: dict[Version, Version] = {}
        """Of weights that are known under several."""
        self._start(None)
        for _ in range(happenings):
            what = pick.choices(["make", "swap", "deliver", "train", "save", "crash"], [6, 12, 9, 9, 2, 0.4])[0]
            getattr(self, f"_{what}")()

    @property
    def ledgers(self) -> list[EpochLedger]:
        return [ledger(number, *records) for number, records in enumerate(self.epochs, 1)]

    @property
    def spools(self) -> dict[str, SpoolView]:
        found = {}
        for explorer in self.explorers:
            left = tuple((n, len(rows)) for n, rows in explorer.batches.items() if n > explorer.acknowledged)
            forgotten = explorer.groups_through(explorer.acknowledged)
            contents = SpoolContents(
                "run", explorer.name, len(explorer.batches), explorer.acknowledged, forgotten, left
            )
            found[explorer.name] = SpoolView(contents, contents)
        return found

    @property
    def epoch(self) -> int:
        return len(self.epochs)

    def proven_through(self, explorer: str) -> int:
        """The highest batch of which the newest checkpoint of the present lineage says that it is gone."""
        return self.proven.get(explorer, (0, 0))[0]

    def _start(self, checkpoint: Checkpoint | None) -> None:
        self.epochs.append([])
        self.proven = dict(checkpoint.frontiers) if checkpoint is not None else {}
        self.state = copy.deepcopy(checkpoint.state) if checkpoint is not None else State()
        self.first_names[self.epoch, self.state.step] = self.state.weights
        self.waiting: list[Row] = []
        self.received = {name: sequence for name, (sequence, _) in self.proven.items()}
        self.met: set[str] = set()
        resumed = None if checkpoint is None else (checkpoint.epoch, checkpoint.state.step, checkpoint.record)
        fields = {"frontiers": self.proven, "max_staleness": MAX_STALENESS, "acknowledges_steps": self.by_steps}
        self._write(start(self.epoch, resumed, **fields))

    def _write(self, record: Record) -> None:
        self.epochs[-1].append(record)

    def _make(self) -> None:
        self.pick.choice(self.explorers).make(self.pick.randint(1, 3))

    def _swap(self) -> None:
        self.pick.choice(self.explorers).weights = (self.epoch, self.state.step)

    def _deliver(self) -> None:
        explorer = self.pick.choice(self.explorers)
        self._meet(explorer)
        coming = self.received.get(explorer.name, 0) + 1
        if coming in explorer.batches:
            self.received[explorer.name] = coming
            gone = self.state.gone.setdefault(explorer.name, set())
            self.waiting += [row for row in explorer.batches[coming] if row.ordinal not in gone]

    def _meet(self, explorer: ToyExplorer) -> None:
        if explorer.name in self.met:
            return
        self.met.add(explorer.name)
        frontier, forgotten = self._frontier(explorer), explorer.acknowledged
        if forgotten > frontier:
            gone = self.state.gone.setdefault(explorer.name, set())
            rows = [row for n, batch in explorer.batches.items() if frontier < n <= forgotten for row in batch]
            lost = [row for row in rows if row.ordinal not in gone]
            self._write(Skipped(explorer.name, forgotten, explorer.groups_through(forgotten), len(lost)))
            self.state.skipped[explorer.name] = forgotten
            self.received[explorer.name] = forgotten
        elif self.received.get(explorer.name, 0) < forgotten:
            self.received[explorer.name] = forgotten

    def _train(self) -> None:
        number = self.state.step + 1
        lost = [row for row in self.waiting if self.first_names[row.made] not in self.state.ancestors]
        kept = [row for row in self.waiting if row not in lost]
        stale = [row for row in kept if number - 1 - row.made[1] > MAX_STALENESS]
        for reason, rows in (("lost_lineage", lost), ("too_stale", stale)):
            if rows:
                self._write(dropped(number, reason, *rows))
                self._leave(rows)
        self.waiting = [row for row in kept if row not in stale]
        if len(self.waiting) < GROUPS_A_STEP:
            return
        self.pick.shuffle(self.waiting)
        batch, self.waiting = self.waiting[:GROUPS_A_STEP], self.waiting[GROUPS_A_STEP:]
        self._write(step(number, *batch, applied=self.pick.random() < 0.9))
        self._leave(batch)
        self.state.step, self.state.weights = number, (self.epoch, number)
        self.state.ancestors.add(self.state.weights)
        self.first_names[self.state.weights] = self.state.weights
        if self.by_steps:
            self._acknowledge(self._frontiers())

    def _leave(self, rows: list[Row]) -> None:
        for row in rows:
            self.state.gone.setdefault(row.explorer, set()).add(row.ordinal)

    def _save(self) -> None:
        if self.by_steps:
            return
        covers = len(self.epochs[-1]) - 1
        known = self._frontiers()
        self.checkpoints.append(Checkpoint(self.epoch, covers, copy.deepcopy(self.state), known))
        if self.pick.random() < 0.2:
            return  # killed, if so, before its record
        for _ in range(self.pick.randint(0, 2)):
            self.pick.choice([self._deliver, self._train])()  # while it is written
        self._write(saved(self.checkpoints[-1].state.step, covers, known))
        self.proven = known
        if self.pick.random() < 0.8:
            self._acknowledge(known)

    def _acknowledge(self, known: dict[str, tuple[int, int]]) -> None:
        for explorer in self.explorers:
            if explorer.name in self.met:
                explorer.acknowledged = max(explorer.acknowledged, known.get(explorer.name, (0, 0))[0])

    def _frontiers(self) -> dict[str, tuple[int, int]]:
        found = {explorer.name: (self._frontier(explorer), explorer) for explorer in self.explorers}
        return {name: (through, explorer.groups_through(through)) for name, (through, explorer) in found.items()}

    def _frontier(self, explorer: ToyExplorer) -> int:
        frontier = self.state.skipped.get(explorer.name, 0)
        gone = self.state.gone.get(explorer.name, set())
        while all(row.ordinal in gone for row in explorer.batches.get(frontier + 1, [Row(0, -1)])):
            frontier += 1
        return frontier

    def _crash(self) -> None:
        """Goes on from one of the newest checkpoints, or, when there is none or nobody wants it, from nothing."""
        choice = self.pick.random()
        if not self.checkpoints or choice < 0.1:
            self._start(None)
        else:
            self._start(self.checkpoints[-1 if choice < 0.8 else max(-2, -len(self.checkpoints))])
