"""The audit of a stage: everything that its ledgers and spools can prove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.audit.accounts import Account, accounts, check_balance
from common.audit.findings import Finding
from common.audit.frontiers import Frontiers
from common.audit.group_checks import check_once, check_versions
from common.audit.group_table import GroupTable, group_table
from common.audit.history import History
from common.audit.ledger_files import FOLDER, EpochLedger, read_ledgers
from common.audit.record_checks import check_records, corrupt_lines
from common.audit.records import Saved, Step
from common.audit.spools import SpoolView, check_spool, read_spools, views
from common.errors import MalformedData

MAX_STAGES = 1000


@dataclass(frozen=True, slots=True)
class StageAudit:
    """What was found."""

    stage: str
    """Its name."""
    run: str
    """Name of the run."""
    epochs: int
    """Starts of the trainer."""
    steps: int
    """Steps that the run's present state descends from."""
    saved_step: int
    """Of the newest durable checkpoint among these; 0: none."""
    accounts: tuple[Account, ...]
    """By explorer; empty where a ledger cannot be read."""
    findings: tuple[Finding, ...]
    """Empty: every promise was kept."""


def audit_run(folder: Path) -> tuple[StageAudit, ...]:
    """Audits a stage's folder, or all stages below a run's. Changes nothing; the run may go on meanwhile.

    Raises MalformedData, CheckpointInvalid or StorageFailed where there is nothing that can be read.
    """
    if not folder.is_dir():
        raise MalformedData(f"{folder} is no folder")
    if (folder / FOLDER).is_dir():
        return (audit_stage(folder),)
    stages = [path for path in sorted(folder.iterdir()) if (path / FOLDER).is_dir()]
    if not stages:
        raise MalformedData(f"{folder}: no ledger here, neither of a run nor of a stage that explorers took part in")
    if len(stages) > MAX_STAGES:
        raise MalformedData(f"{folder} has more than {MAX_STAGES} stages")
    return tuple(audit_stage(stage) for stage in stages)


def audit_stage(folder: Path) -> StageAudit:
    """Audits one stage; raises as `audit_run`."""
    before = read_spools(folder)
    ledgers = read_ledgers(folder)
    return examine(folder.name, ledgers, views(before, read_spools(folder)))


def examine(stage: str, ledgers: Sequence[EpochLedger], spools: Mapping[str, SpoolView]) -> StageAudit:
    """What ledgers and spools prove. No file is read."""
    history = History(ledgers)
    newest = history.newest
    of_records = corrupt_lines(ledgers) or [finding for ledger in ledgers for finding in check_records(ledger)]
    if newest is None or any(ledger.corrupt for ledger in ledgers):
        return StageAudit(stage, "", len(ledgers), 0, 0, (), tuple(of_records))
    table = group_table(history)
    frontiers = Frontiers(history, table)
    found = accounts(table, frontiers, spools)
    run = history.start(newest.epoch).run
    return StageAudit(
        stage=stage,
        run=run,
        epochs=len(ledgers),
        steps=_steps(history),
        saved_step=_saved_step(history),
        accounts=found,
        findings=(*of_records, *_findings(history, table, frontiers, spools, found)),
    )


def _findings(
    history: History,
    table: GroupTable,
    frontiers: Frontiers,
    spools: Mapping[str, SpoolView],
    found: Sequence[Account],
) -> Iterator[Finding]:
    newest = history.newest
    run = history.start(newest.epoch).run if newest is not None else ""
    yield from history.broken_links()
    yield from check_once(table)
    yield from check_versions(history, table)
    yield from frontiers.findings()
    for account in found:
        spool = spools.get(account.explorer)
        if spool is not None:
            yield from check_spool(spool, run, frontiers, _highest(table, account.explorer))
            yield from check_balance(account, spool)


def _highest(table: GroupTable, explorer: str) -> int:
    if explorer not in table.explorers:
        return 0
    rows = table.columns["explorer"] == table.explorers.index(explorer)
    return int(np.max(table.columns["sequence"][rows], initial=0))


def _steps(history: History) -> int:
    newest = history.newest
    if newest is None:
        return 0
    resumed = history.start(newest.epoch).resumed
    steps = [entry.record.step for entry in newest.entries if isinstance(entry.record, Step)]
    return max(steps, default=resumed.step if resumed is not None else 0)


def _saved_step(history: History) -> int:
    newest = history.newest
    if newest is None:
        return 0
    resumed = history.start(newest.epoch).resumed
    saved = [entry.record.step for entry in newest.entries if isinstance(entry.record, Saved)]
    return max(saved, default=resumed.step if resumed is not None else 0)
