"""Every group of all ledgers as rows of one table, to be checked by the column.

Shape letter: `R` rows, one for each time that a ledger tells of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.audit.findings import Finding, Violation
from common.audit.history import History
from common.audit.ledger_files import Entry
from common.audit.records import COLUMNS, Column, Dropped, Step

Mask = npt.NDArray[np.bool_]

MAX_EXAMPLES = 20
"""Of one violation in one check; how many there are is said too."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupTable:
    """Rows in the order of run epochs and, within, of records. int64 `[R]` each."""

    explorers: tuple[str, ...]
    """The names that `columns["explorer"]` counts."""
    columns: dict[str, Column]
    """As in `records.Groups`."""
    source: Column
    """Index in `sources` of the record that a row is from."""
    sources: tuple[tuple[int, Entry], ...]
    """(run epoch, record)."""
    order: Column
    """Place of that record in what the run's present state descends from, from 0; -1: it does not descend from it."""

    @property
    def alive(self) -> Mask:
        """Whether the run's present state descends from it."""
        return self.order >= 0

    def of_source(self, kind: type[Step | Dropped]) -> Mask:
        """Rows of records of a kind."""
        matches = np.array([isinstance(entry.record, kind) for _, entry in self.sources], dtype=np.bool_)
        return matches[self.source]

    def of_step(self) -> Column:
        """The step that trained it, or that it was dropped before."""
        steps = np.array([_step_of(entry) for _, entry in self.sources], dtype=np.int64)
        return steps[self.source]

    def of_epoch(self) -> Column:
        """Run epoch of the trainer that let it go."""
        return np.array([epoch for epoch, _ in self.sources], dtype=np.int64)[self.source]

    def findings(self, violation: Violation, wrong: Mask, message: str) -> list[Finding]:
        """One for each of the first rows that are wrong. `{...}` in the message: a column, or `step`."""
        rows = np.flatnonzero(wrong)
        return [self._finding(violation, int(row), message, len(rows)) for row in rows[:MAX_EXAMPLES]]

    def _finding(self, violation: Violation, row: int, message: str, count: int) -> Finding:
        epoch, entry = self.sources[self.source[row]]
        values = {name: int(column[row]) for name, column in self.columns.items()}
        explorer, step = self.explorers[values["explorer"]], _step_of(entry)
        told = message.format(**{**values, "explorer": explorer, "step": step})
        if count > MAX_EXAMPLES:
            told += f" (one of {count})"
        return Finding(
            violation,
            told,
            epoch=epoch,
            line=entry.line + 1,
            step=step,
            explorer=explorer,
            sequence=values["sequence"],
            ordinal=values["ordinal"],
        )


def group_table(history: History) -> GroupTable:
    """The table of a stage."""
    alive = _places(history)
    names: dict[str, int] = {}
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    sources: list[tuple[int, Entry]] = []
    sizes: list[int] = []
    order: list[int] = []
    for ledger in history.ledgers:
        for entry in ledger.entries:
            if not isinstance(entry.record, Step | Dropped):
                continue
            groups = entry.record.groups
            index = np.array([names.setdefault(name, len(names)) for name in groups.explorers], dtype=np.int64)
            for name in COLUMNS:
                column = getattr(groups, name)
                parts[name].append(index[column] if name == "explorer" else column)
            sources.append((ledger.epoch, entry))
            sizes.append(len(groups.sequence))
            order.append(alive.get((ledger.epoch, entry.line), -1))
    counts = np.array(sizes, dtype=np.int64)
    return GroupTable(
        explorers=tuple(names),
        columns={name: np.concatenate([np.zeros(0, np.int64), *columns]) for name, columns in parts.items()},
        source=np.repeat(np.arange(len(sources), dtype=np.int64), counts),
        sources=tuple(sources),
        order=np.repeat(np.array(order, dtype=np.int64), counts),
    )


def _places(history: History) -> dict[tuple[int, int], int]:
    """Place in what the present state descends from, by run epoch and line."""
    newest = history.newest
    if newest is None:
        return {}
    chain = history.chain(newest.epoch)
    alive = ((link.ledger.epoch, entry.line) for link in chain for entry in link.entries())
    return {where: place for place, where in enumerate(alive)}


def _step_of(entry: Entry) -> int:
    return entry.record.step if isinstance(entry.record, Step | Dropped) else 0
