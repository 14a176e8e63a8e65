"""The audit of real runs: while they go on, after kills of both sides, at their end, and of a ledger that was changed."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from common.audit.findings import Violation
from common.audit.ledger_files import ledger_path
from common.audit.records import Saved, Step, decode, encode
from common.audit.stage import audit_stage
from common.errors import StorageFailed
from tests.support.audited import audited_clean
from tests.support.hand_ledgers import groups, rows_of
from tests.support.pair import REPOSITORY, processes
from tests.support.pair_config import pair_config, pair_settings
from tests.support.pair_in_process import in_process, kill

PATIENT = {"trainer": {"peer_timeout": 250}, "explorer": {"peer_timeout": 250}}
SLOW = {"taskset": {"reward": "slow_digits"}, "sync": {"offset": 1}, "monitor": {"log_format": "json"}}


async def tandem_audit(run: Path) -> tuple[int, dict[str, Any]]:
    """Exit code, and the last line of standard output."""
    command = (sys.executable, "-m", "common.cli.app", "audit", str(run), "--json")
    process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return process.returncode or 0, json.loads(said.splitlines()[-1])


@pytest.mark.timeout(600)
async def test_a_run_audits_clean_while_it_goes_on_after_each_kill_and_at_its_end(tmp_path: Path) -> None:
    steps, run = 12, tmp_path / "runs" / "pair"
    settings = pair_settings(
        tmp_path / "runs", SLOW, PATIENT, {"trainer": {"total_steps": steps}, "checkpoint": {"save_interval": 2}}
    )
    async with processes(tmp_path, settings) as pair:
        trainer, explorer = pair.start("trainer"), pair.start("explorer")
        await trainer.until(lambda status: status.step >= 3)
        code, said = await tandem_audit(run)
        assert (code, said["clean"]) == (0, True)
        assert said["stages"][0]["steps"] >= 3
        explorer.send(signal.SIGKILL)
        await explorer.ended()
        audited_clean(run / "main")
        explorer = pair.start("explorer")
        await trainer.until(lambda status: status.saved_step >= 4 and status.step >= 5)
        trainer.send(signal.SIGKILL)
        await trainer.ended()
        assert (await tandem_audit(run))[0] == 0
        trainer = pair.start("trainer")
        await trainer.until(lambda status: status.step >= 4)
        assert (await tandem_audit(run))[0] == 0
        assert (await trainer.ended(), await explorer.ended()) == (0, 0)
    audit = audited_clean(run / "main")
    assert (audit.run, audit.epochs, audit.steps, audit.saved_step) == ("pair", 2, steps, steps)
    (account,) = audit.accounts
    assert account.trained + account.not_applied == 2 * steps


async def test_a_changed_ledger_of_a_real_run_is_found(tmp_path: Path) -> None:
    config = pair_config(tmp_path, {"trainer": {"total_steps": 4}, "checkpoint": {"save_interval": 2}})
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        await pair.both_end()
    audited_clean(config.stage_folder)
    path = ledger_path(config.stage_folder, 1)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    number, record = decode(lines[1][:-1])
    assert isinstance(record, Step)
    fewer = encode(number, Step(1, record.applied, groups(rows_of(record)[1:])))
    for changed, violation, line in (
        (whole.replace(b'"ordinal":[0', b'"ordinal":[1', 1), Violation.CORRUPT_RECORD, 2),
        (b"".join([*lines[:2], *lines[3:]]), Violation.RECORD_OUT_OF_PLACE, 3),
        (b"".join([*lines[:2], lines[1], *lines[2:]]), Violation.RECORD_OUT_OF_PLACE, 3),
        (b"".join([lines[0], fewer, *lines[2:]]), Violation.MISSING, None),
    ):
        assert changed != whole
        path.write_bytes(changed)
        found = audit_stage(config.stage_folder).findings
        assert violation in {one.violation for one in found}
        assert line is None or found[0].line == line


@pytest.mark.parametrize("interval", [None, 1])
async def test_what_an_explorer_forgot_is_in_the_ledger_and_what_its_trainer_lost_is_counted(
    interval: int | None, tmp_path: Path
) -> None:
    """A trainer starts afresh, once over a run that keeps checkpoints, once over one that acknowledges steps."""
    settings = {"trainer": {"total_steps": 6}, "checkpoint": {"save_interval": interval}}
    config = pair_config(tmp_path, SLOW, settings)
    afresh = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"resume": False})})
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 3 and status.explorers[0].frontier >= 2)
        await kill(pair.tasks.pop("trainer"))
        pair.start_trainer(afresh)
        await pair.both_end()
    audit = audited_clean(config.stage_folder)
    assert (audit.epochs, audit.steps) == (2, 6)
    assert audit.accounts[0].lost >= 2


async def test_a_ledger_that_cannot_be_written_ends_the_run_and_nothing_more_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pair_config(tmp_path, {"trainer": {"total_steps": 9}, "checkpoint": {"save_interval": 1}})
    write, path = os.write, ledger_path(config.stage_folder, 1)

    def full(descriptor: int, data: bytes) -> int:
        if b'"kind":"step","step":3,' in data and path.samefile(f"/proc/self/fd/{descriptor}"):
            write(descriptor, data[:40])
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        failure = await pair.failure("trainer")
        assert isinstance(failure, StorageFailed)
        assert failure.message == f"ledger {path}: No space left on device"
        assert "No space left" in str(await pair.failure("explorer"))
    audit = audited_clean(config.stage_folder)
    assert (audit.steps, audit.saved_step) == (2, 2)
    assert max(path.name for path in config.checkpoint_root.glob("step_*")) == "step_00000002-e1"


async def test_a_checkpoint_knows_of_no_step_that_the_ledger_has_not(tmp_path: Path) -> None:
    config = pair_config(tmp_path, {"trainer": {"total_steps": 3}, "checkpoint": {"save_interval": 1, "keep": 9}})
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        await pair.both_end()
    lines = ledger_path(config.stage_folder, 1).read_bytes().splitlines()
    records = [record for _, record in map(decode, lines)]
    saves = [record for record in records if isinstance(record, Saved)]
    assert {saved.step for saved in saves} == {1, 2, 3}
    for saved in saves:
        covered = [record.step for record in records[: saved.record + 1] if isinstance(record, Step)]
        assert covered == list(range(1, saved.step + 1))
