"""Every group by itself: left once, made on weights that the trainer's state descends from, and not too old."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from common.audit.findings import Finding, Violation
from common.audit.group_table import GroupTable, Mask
from common.audit.history import History
from common.audit.records import Column, Dropped, Step

TOO_STALE = "too_stale"
LOST_LINEAGE = "lost_lineage"
_NEVER = -1


def check_once(table: GroupTable) -> Iterator[Finding]:
    """No group left twice in what the present state descends from; and names mean one thing in all ledgers."""
    explorer, sequence, ordinal = (table.columns[name] for name in ("explorer", "sequence", "ordinal"))
    alive = table.alive
    again = np.zeros(len(explorer), np.bool_)
    again[alive] = _repeats(explorer[alive], ordinal[alive])
    yield from table.findings(
        Violation.TWICE, again, "group {ordinal} of {explorer} was trained or dropped before; this is step {step}"
    )
    moved = _differs_from_first(explorer, ordinal, value=sequence)
    yield from table.findings(
        Violation.BATCH_CHANGED, moved, "group {ordinal} of {explorer} came in another batch before, now in {sequence}"
    )
    resized = _differs_from_first(explorer, sequence, value=table.columns["batch_groups"])
    yield from table.findings(
        Violation.BATCH_CHANGED,
        resized,
        "batch {sequence} of {explorer} held another number of groups before, now {batch_groups}",
    )


def check_versions(history: History, table: GroupTable) -> Iterator[Finding]:
    """What was trained was made on our weights, before its step, and within the bound; what was dropped was dropped rightly."""
    newest, oldest, step = table.columns["newest"], table.columns["oldest"], table.of_step()
    trained, dropped = table.of_source(Step), table.of_source(Dropped)
    descends = newest <= _newest_ancestors(history, table)
    stale = _too_stale(history, table, step - 1 - oldest)
    for violation, wrong, message in (
        (
            Violation.DEAD_LINEAGE,
            trained & ~descends & ~_reproducible(history, table),
            "step {step} trained group {ordinal} of {explorer}, made on version {newest} of run epoch {run_epoch}, not its own",
        ),
        (
            Violation.FROM_THE_FUTURE,
            trained & (newest >= step),
            "step {step} trained group {ordinal} of {explorer}, made on version {newest}",
        ),
        (
            Violation.TOO_STALE,
            trained & stale,
            "step {step} trained group {ordinal} of {explorer}, made on version {oldest}: more steps than max_staleness",
        ),
        (
            Violation.VERSIONS_REVERSED,
            oldest > newest,
            "group {ordinal} of {explorer} reaches from version {oldest} to {newest}",
        ),
        (
            Violation.WRONG_REASON,
            dropped & _with_reason(table, TOO_STALE) & ~stale,
            "group {ordinal} of {explorer}, made on version {oldest}, was no more steps old than max_staleness",
        ),
        (
            Violation.WRONG_REASON,
            dropped & _with_reason(table, LOST_LINEAGE) & descends,
            "group {ordinal} of {explorer}, made on version {newest} of run epoch {run_epoch}, was of the run's lineage",
        ),
    ):
        yield from table.findings(violation, wrong, message)


def _newest_ancestors(history: History, table: GroupTable) -> Column:
    """For each row, the newest version of its run epoch that the trainer which let it go descends from."""
    pairs = np.stack([table.of_epoch(), table.columns["run_epoch"]], axis=1)
    distinct, index = np.unique(pairs, axis=0, return_inverse=True)
    limits = [history.newest_ancestor(int(epoch), int(of)) for epoch, of in distinct]
    return np.array(limits, dtype=np.int64)[index.reshape(-1)]


def _reproducible(history: History, table: GroupTable) -> Mask:
    of_source = [history.start(epoch).reproducible for epoch, _ in table.sources]
    return np.array(of_source, dtype=np.bool_)[table.source]


def _too_stale(history: History, table: GroupTable, staleness: Column) -> Mask:
    bounds = {ledger.epoch: history.start(ledger.epoch).max_staleness for ledger in history.ledgers}
    of_source = [bounds[epoch] for epoch, _ in table.sources]
    bound = np.array([_NEVER if one is None else one for one in of_source], dtype=np.int64)[table.source]
    stale: Mask = (bound != _NEVER) & (staleness > bound)
    return stale


def _with_reason(table: GroupTable, reason: str) -> Mask:
    matches = [isinstance(entry.record, Dropped) and entry.record.reason == reason for _, entry in table.sources]
    return np.array(matches, dtype=np.bool_)[table.source]


def _repeats(*keys: Column) -> Mask:
    """Rows whose keys an earlier row has."""
    repeats = np.ones(len(keys[0]), np.bool_)
    repeats[_first_with_same(keys) == np.arange(len(keys[0]))] = False
    return repeats


def _differs_from_first(*keys: Column, value: Column) -> Mask:
    """Rows whose value is not that of the first row with the same keys."""
    differs: Mask = value != value[_first_with_same(keys)]
    return differs


def _first_with_same(keys: tuple[Column, ...]) -> Column:
    """For each row, the first one with the same keys."""
    order = np.lexsort((np.arange(len(keys[0])), *keys))
    changes = np.ones(len(order), np.bool_)
    for key in keys:
        changes[1:] &= key[order][1:] == key[order][:-1]
    changes[1:] = ~changes[1:]
    run = np.cumsum(changes) - 1
    first = np.empty(len(order), np.int64)
    first[order] = order[changes][run] if len(order) else order
    return first
