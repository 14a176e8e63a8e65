"""The trainer writes down what leaves the buffer before it leaves, and saves nothing that is not written."""

import os
from pathlib import Path
from typing import Any

import pytest

from common.audit.ledger_files import EpochLedger, read_ledgers
from common.audit.records import Dropped, Saved, Skipped, Step
from common.errors import CheckpointInvalid, ConfigError, StorageFailed
from common.sync.lineage import Lineage
from tests.support.hand_ledgers import Row, rows_of, start
from tests.support.received_groups import received_batch
from trainer_service.buffer.queue import GroupQueue
from trainer_service.ledger import LedgerFile, frontiers


def written(folder: Path) -> EpochLedger:
    (read,) = read_ledgers(folder)
    assert not read.corrupt
    assert [entry.number for entry in read.entries] == [entry.line for entry in read.entries]
    return read


def test_a_step_a_drop_and_a_skip_are_written_as_they_happen(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path, start(3, (2, 4, 9)))
    queue = GroupQueue(1, Lineage(3, ((2, 4),)), ledger)
    assert queue.skip_to("e", 2, 5) == 5
    queue.take_in(received_batch(3, [5, 6, 7], run_epoch=3, oldest=4))
    queue.take_in(received_batch(4, [8], run_epoch=2, oldest=5))  # of a step of the second start that was lost
    queue.drop_unusable(5)
    groups = queue.take(2)
    assert ledger.position == 2
    queue.trained(groups, 5, applied=False)
    queue.drop_unusable(7)  # version 4 is two steps too old by then
    records = [entry.record for entry in written(tmp_path).entries[1:]]
    assert records[0] == Skipped("e", 2, 5, 5)
    lost, trained, stale = records[1:]
    assert isinstance(lost, Dropped)
    assert (lost.step, lost.reason, rows_of(lost)) == (5, "lost_lineage", [Row(4, 8, of=1, made=(2, 5))])
    assert isinstance(trained, Step)
    assert (trained.step, trained.applied) == (5, False)
    assert rows_of(trained) == [Row(3, 5, of=3, made=(3, 4)), Row(3, 6, of=3, made=(3, 4))]
    assert isinstance(stale, Dropped)
    assert (stale.step, stale.reason, rows_of(stale)) == (7, "too_stale", [Row(3, 7, of=3, made=(3, 4))])
    ledger.close()


def test_a_group_whose_task_was_done_before_is_written_when_it_comes(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path, start(1))
    queue = GroupQueue(None, Lineage(1), ledger)
    queue.take_in(received_batch(1, [0]))
    queue.trained(queue.take(1), 1, applied=True)
    queue.tasks.pool.give_up("e")
    intake = queue.take_in(received_batch(2, [0]))  # the same task once more
    assert len(intake.refused) == 1
    record = written(tmp_path).entries[-1].record
    assert isinstance(record, Dropped)
    assert (record.step, record.reason) == (2, "task_done_before")
    ledger.close()


def test_nothing_is_skipped_and_nothing_written_when_the_explorer_has_forgotten_what_we_know(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path, start(1))
    queue = GroupQueue(None, Lineage(1), ledger)
    queue.take_in(received_batch(1, [0, 1]))
    queue.trained(queue.take(2), 1, applied=True)
    assert queue.skip_to("e", 1, 2) == 0
    assert ledger.position == 1
    ledger.close()


def test_a_checkpoint_is_written_with_what_it_covers(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path, start(1))
    accounts = {"e": {"frontier": 3, "groups_below_frontier": 7, "gone_beyond": {}}}
    ledger.saved(6, {"source": {"accounts": accounts, "ledger": 0}})
    (_, entry) = written(tmp_path).entries
    assert entry.record == Saved(6, 0, frontiers({"source": {"accounts": accounts}}))
    ledger.close()


def test_a_run_epoch_is_written_once(tmp_path: Path) -> None:
    LedgerFile(tmp_path, start(1)).close()
    with pytest.raises(ConfigError, match="know of no run epoch 1"):
        LedgerFile(tmp_path, start(1))
    LedgerFile(tmp_path, start(2)).close()


def test_after_a_failed_write_nothing_leaves_and_no_checkpoint_may_become_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = LedgerFile(tmp_path, start(1))
    queue = GroupQueue(None, Lineage(1), ledger)
    queue.take_in(received_batch(1, [0]))
    groups = queue.take(1)
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(StorageFailed, match="No space left"):
        queue.trained(groups, 1, applied=True)
    monkeypatch.undo()
    assert queue.account("e").frontier == 0
    for later in (ledger.sync, lambda: queue.trained(groups, 1, applied=True), lambda: ledger.saved(1, STATE)):
        with pytest.raises(StorageFailed, match="No space left"):
            later()
    assert len(written(tmp_path).entries) == 1  # the torn line is left out
    ledger.close()


STATE: dict[str, Any] = {"source": {"accounts": {}, "ledger": 0}}


def test_after_a_failed_sync_it_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = LedgerFile(tmp_path, start(1))

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageFailed, match="Input/output error"):
        ledger.sync()
    monkeypatch.undo()
    with pytest.raises(StorageFailed, match="Input/output error"):
        ledger.sync()
    ledger.close()


def test_malformed_accounts_are_an_invalid_checkpoint() -> None:
    for accounts in (None, {"e": {}}, {"e": {"frontier": "x", "groups_below_frontier": 0}}):
        with pytest.raises(CheckpointInvalid, match="accounts"):
            frontiers({"source": {"accounts": accounts}})
