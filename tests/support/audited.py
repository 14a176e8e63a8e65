"""The proof that a run kept its promises, for the end of a test."""

from pathlib import Path

from common.audit.stage import StageAudit, audit_stage


def audited_clean(stage_folder: Path) -> StageAudit:
    """The audit of a stage; fails where it finds anything, or where an explorer's groups do not add up."""
    audit = audit_stage(stage_folder)
    assert not audit.findings, "\n".join(finding.message for finding in audit.findings)
    for account in audit.accounts:
        gone = account.trained + account.not_applied + sum(account.dropped.values()) + account.lost
        assert account.pending is not None
        assert account.produced == gone + account.pending
    return audit
