"""The proof that a run kept its promises, for the end of a test."""

from dataclasses import dataclass
from pathlib import Path

from common.audit.findings import Violation
from common.audit.stage import StageAudit, audit_stage


@dataclass
class Found:
    """What all audits of this process have found."""

    lost: int = 0
    duplicated: int = 0


found = Found()
_LOST = {Violation.MISSING, Violation.MISCOUNTED, Violation.ACKNOWLEDGED_TOO_EARLY, Violation.SPOOL_NOT_CONTIGUOUS}
_DUPLICATED = {Violation.TWICE, Violation.BATCH_CHANGED}


def audited_clean(stage_folder: Path) -> StageAudit:
    """The audit of a stage; fails where it finds anything, or where an explorer's groups do not add up."""
    audit = audit_stage(stage_folder)
    found.lost += sum(finding.violation in _LOST for finding in audit.findings)
    found.duplicated += sum(finding.violation in _DUPLICATED for finding in audit.findings)
    assert not audit.findings, "\n".join(finding.message for finding in audit.findings)
    for account in audit.accounts:
        gone = account.trained + account.not_applied + sum(account.dropped.values()) + account.lost
        assert account.pending is not None
        assert account.produced == gone + account.pending
    return audit
