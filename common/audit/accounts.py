"""For each explorer, what became of the groups that it made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from common.audit.findings import Finding, Violation
from common.audit.frontiers import Frontiers
from common.audit.group_table import GroupTable
from common.audit.records import Dropped, Skipped, Step
from common.audit.spools import SpoolView, is_settled


@dataclass(frozen=True, slots=True)
class Account:
    """In groups, as of what the run's present state descends from."""

    explorer: str
    trained: int
    """Part of a step that changed the weights."""
    not_applied: int
    """Part of a step whose gradient was not finite."""
    dropped: Mapping[str, int]
    """Neither, by reason."""
    lost: int
    """Acknowledged under a checkpoint that a later start did not go on from; the explorer has forgotten them."""
    experiences: int
    """Experiences of the groups that were trained."""
    produced: int | None
    """Ever made; None where its spool is not on this machine."""
    pending: int | None
    """In its spool, and in no step yet."""


def accounts(table: GroupTable, frontiers: Frontiers, spools: Mapping[str, SpoolView]) -> tuple[Account, ...]:
    """Of all explorers, by name."""
    names = sorted({*table.explorers, *spools, *frontiers.explorers})
    return tuple(_account(name, table, frontiers, spools.get(name)) for name in names)


def check_balance(account: Account, spool: SpoolView) -> Iterator[Finding]:
    """What was made is what became of it."""
    if account.produced is None or account.pending is None or not spool.is_whole:
        return
    dropped = sum(account.dropped.values())
    known = account.trained + account.not_applied + dropped + account.lost + account.pending
    if account.produced != known:
        message = (
            f"{account.explorer} has made {account.produced} groups, and of {known} it is known what became of them: "
            f"{account.trained} trained, {account.not_applied} in steps without an update, {dropped} dropped, "
            f"{account.lost} lost, {account.pending} pending"
        )
        yield Finding(Violation.MISCOUNTED, message, explorer=account.explorer)


def _account(name: str, table: GroupTable, frontiers: Frontiers, spool: SpoolView | None) -> Account:
    index = table.explorers.index(name) if name in table.explorers else -1
    rows = np.flatnonzero((table.columns["explorer"] == index) & table.alive)
    per_source = np.bincount(table.source[rows], minlength=len(table.sources))
    experiences = np.bincount(table.source[rows], table.columns["experiences"][rows], len(table.sources))
    trained = not_applied = trained_experiences = 0
    dropped: Counter[str] = Counter()
    for place in np.flatnonzero(per_source).tolist():
        groups = int(per_source[place])
        match table.sources[place][1].record:
            case Step(applied=True):
                trained += groups
                trained_experiences += int(experiences[place])
            case Step():
                not_applied += groups
            case Dropped(reason=reason):
                dropped[reason] += groups
            case _:
                raise TypeError("a row of neither a step nor a drop")
    skipped = (entry.record for _, entry, _ in frontiers.skips if isinstance(entry.record, Skipped))
    lost = sum(record.lost for record in skipped if record.explorer == name)
    completeness = frontiers.of(name)
    if spool is not None and not is_settled(spool.before, frontiers):
        known = completeness.left_between(0, spool.before.acknowledged)
        lost = max(0, spool.before.acknowledged_groups - known)
    pending = None
    if spool is not None:
        left = (completeness.of_batch(sequence) or (0, 0) for sequence in spool.batches)
        pending = sum(spool.batches.values()) - sum(gone for gone, _ in left)
    return Account(
        explorer=name,
        trained=trained,
        not_applied=not_applied,
        dropped=dict(dropped),
        lost=lost,
        experiences=trained_experiences,
        produced=spool.produced if spool is not None else None,
        pending=pending,
    )
