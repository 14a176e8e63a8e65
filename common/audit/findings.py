"""What an audit finds: each kind of violation, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Violation(StrEnum):
    """What must never be."""

    CORRUPT_RECORD = "corrupt_record"
    """A line that is no record, or not the one that was written."""
    RECORD_OUT_OF_PLACE = "record_out_of_place"
    """A record is missing, comes twice, or stands elsewhere than it was written."""
    LEDGER_MISSING = "ledger_missing"
    """A start went on from a checkpoint of which no ledger tells."""
    STEP_OUT_OF_ORDER = "step_out_of_order"
    """A step, a drop or a checkpoint at another step than the records before it come to."""
    TWICE = "twice"
    """A group was trained or dropped twice in what the run's state descends from."""
    BATCH_CHANGED = "batch_changed"
    """A sequence number names two batches, or an ordinal two groups."""
    MISSING = "missing"
    """Below a frontier, a group was neither trained, nor dropped, nor counted as lost."""
    MISCOUNTED = "miscounted"
    """A recorded number of groups is not what the records come to."""
    FRONTIER_WENT_BACK = "frontier_went_back"
    DEAD_LINEAGE = "dead_lineage"
    """Trained, though made on weights that the run's state does not descend from."""
    FROM_THE_FUTURE = "from_the_future"
    """Trained by a step that the weights which made it came after."""
    TOO_STALE = "too_stale"
    """Trained, though older than `sync.max_staleness` allows."""
    VERSIONS_REVERSED = "versions_reversed"
    """The newest token is of an older version than the oldest."""
    WRONG_REASON = "wrong_reason"
    """Dropped for a reason that does not hold."""
    ACKNOWLEDGED_TOO_EARLY = "acknowledged_too_early"
    """An explorer has forgotten what no durable checkpoint covers."""
    SPOOL_NOT_CONTIGUOUS = "spool_not_contiguous"
    """What is spooled does not begin right after what was acknowledged, or has a gap."""
    SPOOL_DIFFERS = "spool_differs"
    """Ledger and spool say different things of a batch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation; None where a field has no meaning for it."""

    violation: Violation
    message: str
    epoch: int | None = None
    """Run epoch whose ledger it is in."""
    line: int | None = None
    """Of that ledger, from 1, as editors count."""
    step: int | None = None
    explorer: str | None = None
    sequence: int | None = None
    ordinal: int | None = None
