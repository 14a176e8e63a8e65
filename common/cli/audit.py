"""`tandem audit`: what the ledgers and spools of a run prove."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.audit.accounts import Account
from common.audit.findings import Finding
from common.audit.stage import StageAudit, audit_run
from common.cli.words import clean
from common.errors import TandemError

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_UNREADABLE = 2
SHOWN_FINDINGS = 50


def audit_command(folder: Path, *, as_json: bool) -> int:
    """Prints the audit, and returns the exit code."""
    try:
        stages = audit_run(folder)
    except TandemError as error:
        print(f"tandem: {clean(error.message)}", file=sys.stderr)
        return EXIT_UNREADABLE
    found = sum(len(stage.findings) for stage in stages)
    if as_json:
        print(to_json(stages))
    else:
        console = Console(highlight=False)
        for stage in stages:
            show(stage, console)
    return EXIT_FINDINGS if found else EXIT_CLEAN


def to_json(stages: Sequence[StageAudit]) -> str:
    """One line."""
    return json.dumps({"clean": not any(stage.findings for stage in stages), "stages": [asdict(s) for s in stages]})


def show(stage: StageAudit, console: Console) -> None:
    """A stage for people."""
    console.print(
        Text.assemble(
            ("stage ", "bold"),
            (clean(stage.stage), "bold"),
            f" of run {clean(stage.run)}: {stage.steps} steps, saved up to step {stage.saved_step}, "
            f"{stage.epochs} {'start' if stage.epochs == 1 else 'starts'} of the trainer",
        )
    )
    if stage.accounts:
        console.print(_table(stage.accounts))
    if not stage.findings:
        console.print(Text("clean: every group left once at most, and none is missing", style="green"))
    for finding in stage.findings[:SHOWN_FINDINGS]:
        console.print(Text(_words(finding), style="red"))
    if len(stage.findings) > SHOWN_FINDINGS:
        console.print(Text(f"and {len(stage.findings) - SHOWN_FINDINGS} findings more; --json has all", style="red"))


def _table(accounts: Sequence[Account]) -> Table:
    reasons = sorted({reason for account in accounts for reason in account.dropped})
    without_update = any(account.not_applied for account in accounts)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("explorer")
    drops = [f"dropped: {clean(reason, 40).replace('_', ' ')}" for reason in reasons]
    extra = ["no update"] if without_update else []
    for name in ("produced", "trained", *extra, *drops, "lost", "pending"):
        table.add_column(name, justify="right")
    for account in accounts:
        numbers = [
            account.produced,
            account.trained,
            *([account.not_applied] if without_update else []),
            *(account.dropped.get(reason, 0) for reason in reasons),
            account.lost,
            account.pending,
        ]
        shown = ("?" if number is None else str(number) for number in numbers)
        table.add_row(Text(clean(account.explorer, 80)), *shown)
    if any(account.produced is None for account in accounts):
        table.caption = "?: the explorer's spool is not on this machine"
    return table


def _words(finding: Finding) -> str:
    where = f" (run epoch {finding.epoch}, line {finding.line})" if finding.epoch is not None else ""
    return clean(f"{finding.violation.value.replace('_', ' ')}: {finding.message}{where}")
