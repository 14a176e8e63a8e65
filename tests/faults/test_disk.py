"""A disk that is full: the run ends on both sides with the cause, and goes on from where it was when there is room again."""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import explorer_service.spool
import trainer_service.ledger
from common.config.root import TandemConfig
from common.errors import PeerFailed, StorageFailed
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import in_process, kill

STEPS = 8


def _config(root: Path, save_interval: int) -> TandemConfig:
    return pair_config(
        root,
        {
            "trainer": {"total_steps": STEPS},
            "checkpoint": {"save_interval": save_interval},
            "taskset": {"reward": "slow_digits"},
            "sync": {"offset": 1},
        },
    )


async def test_the_spools_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = explorer_service.spool._connect

    def full(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        # SQLite's own way to have no room: the error is that of a full disk.
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    config = _config(tmp_path, save_interval=100)  # nothing is acknowledged
    async with in_process(config) as pair:
        with monkeypatch.context() as patched:
            patched.setattr(explorer_service.spool, "_connect", full)
            pair.start_trainer()
            pair.start_explorer()
            explorer = await pair.failure("explorer")
            assert isinstance(explorer, StorageFailed)
            assert "spool" in str(explorer)
            assert "full" in str(explorer)
            del pair.tasks["explorer"]
            # The trainer waits for it to come back.
            status = await pair.until(
                pair.trainer_status, lambda status: any(wait.waiting_for == "an explorer" for wait in status.waits)
            )
            assert status.step < STEPS
        pair.start_explorer()
        await pair.both_end()


async def test_the_ledgers_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    write = os.write

    class Full:
        """`os`, with a disk that takes ten lines and half of another one."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, descriptor: int, line: bytes) -> int:
            nonlocal written
            written += 1
            if written == 11:
                return write(descriptor, line[: len(line) // 2])
            if written > 11:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, line)

    config = _config(tmp_path, save_interval=2)
    async with in_process(config) as pair:
        with monkeypatch.context() as patched:
            patched.setattr(trainer_service.ledger, "os", Full())
            pair.start_trainer()
            pair.start_explorer()
            trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
        assert isinstance(trainer, StorageFailed)
        assert isinstance(explorer, PeerFailed)
        for error in (trainer, explorer):
            assert "ledger" in str(error)
            assert os.strerror(errno.ENOSPC) in str(error)
        for side in list(pair.tasks):
            await kill(pair.tasks.pop(side))
        pair.start_trainer()
        pair.start_explorer()
        await pair.both_end()
