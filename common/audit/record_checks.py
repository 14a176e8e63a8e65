"""Each ledger by itself: its records are those that were written, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.audit.findings import Finding, Violation
from common.audit.ledger_files import Entry, EpochLedger
from common.audit.records import Dropped, Saved, Skipped, Start, Step, kind_of

STEPS_AHEAD = 2
"""While a step runs, groups are chosen for the one after it, and dropped."""


def corrupt_lines(ledgers: Sequence[EpochLedger]) -> list[Finding]:
    """Lines that are no records. Where there are any, nothing else can be proven."""
    return [
        Finding(Violation.CORRUPT_RECORD, f"no record: {line.reason}", epoch=ledger.epoch, line=line.line + 1)
        for ledger in ledgers
        for line in ledger.corrupt
    ]


def check_records(ledger: EpochLedger) -> Iterator[Finding]:
    """Numbers without a gap, one start at the head, and steps, drops and checkpoints that follow from one another."""
    for entry in ledger.entries:
        if entry.number != entry.line:
            yield _found(
                Violation.RECORD_OUT_OF_PLACE, ledger, entry, f"it is record {entry.number}, {entry.line} was to come"
            )
        if isinstance(entry.record, Start) != (entry.line == 0):
            yield _found(Violation.RECORD_OUT_OF_PLACE, ledger, entry, "a ledger has one start, its first record")
    start = ledger.start
    if start is None:
        return
    if start.epoch != ledger.epoch:
        message = f"the start is of run epoch {start.epoch}"
        yield _found(Violation.RECORD_OUT_OF_PLACE, ledger, ledger.entries[0], message)
    yield from _check_steps(ledger, start.resumed.step if start.resumed is not None else 0)


def _check_steps(ledger: EpochLedger, step: int) -> Iterator[Finding]:
    done: dict[int, int] = {}
    covered = -1
    for entry in ledger.entries:
        match entry.record:
            case Step(step=its):
                if its != step + 1:
                    yield _found(Violation.STEP_OUT_OF_ORDER, ledger, entry, f"step {its} came after {step}")
                step = its
            case Dropped(step=its):
                if not step < its <= step + STEPS_AHEAD:
                    message = f"{step} steps were done, and it was dropped before step {its}"
                    yield _found(Violation.STEP_OUT_OF_ORDER, ledger, entry, message)
            case Saved(step=its, record=record):
                if done.get(record) != its:
                    message = f"the checkpoint of step {its} after record {record}, where {done.get(record)} were done"
                    yield _found(Violation.STEP_OUT_OF_ORDER, ledger, entry, message)
                if record < covered:
                    message = f"a checkpoint of what was before record {record}, after one of record {covered}"
                    yield _found(Violation.FRONTIER_WENT_BACK, ledger, entry, message)
                covered = record
            case Start() | Skipped():
                pass
        done[entry.number] = step


def _found(violation: Violation, ledger: EpochLedger, entry: Entry, message: str) -> Finding:
    record = entry.record
    step = record.step if isinstance(record, Step | Dropped | Saved) else None
    told = f"{kind_of(record)}: {message}"
    return Finding(violation, told, epoch=ledger.epoch, line=entry.line + 1, step=step)
