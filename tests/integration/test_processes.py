"""The services as processes: kills, signals and exit codes."""

import signal
from pathlib import Path
from typing import Any

import pytest

from common.checkpoint.store import CheckpointStore
from tests.support.pair import Pair, processes
from tests.support.pair_config import free_address, pair_settings

pytestmark = pytest.mark.timeout(600)  # each start costs ten seconds of imports where the machine is busy

PATIENT = {"trainer": {"peer_timeout": 250}, "explorer": {"peer_timeout": 250}}
"""A start may take a minute where the machine is busy."""
SLOW = {"taskset": {"reward": "slow_digits"}, "sync": {"offset": 1}, "monitor": {"log_format": "json"}}


def account(pair: Pair) -> dict[str, Any]:
    """What the newest checkpoint says of the only explorer."""
    newest = CheckpointStore(pair.folder / "runs" / "pair" / "main" / "checkpoints", 1).newest()
    assert newest is not None
    (only,) = newest.manifest.state["source"]["accounts"].values()
    return dict(only)


async def test_the_run_survives_that_both_sides_are_killed_and_each_group_is_trained_once(tmp_path: Path) -> None:
    steps = 12
    settings = pair_settings(
        tmp_path / "runs", SLOW, PATIENT, {"trainer": {"total_steps": steps}, "checkpoint": {"save_interval": 2}}
    )
    async with processes(tmp_path, settings) as pair:
        trainer, explorer = pair.start("trainer"), pair.start("explorer")
        await trainer.until(lambda status: status.step >= 3)
        explorer.send(signal.SIGKILL)
        assert await explorer.ended() == -signal.SIGKILL
        explorer = pair.start("explorer")
        await trainer.until(lambda status: status.saved_step >= 4 and status.step >= 5)
        trainer.send(signal.SIGKILL)
        assert await trainer.ended() == -signal.SIGKILL
        trainer = pair.start("trainer")
        status = await trainer.until(lambda status: status.step >= 4)
        assert status.run_epoch == 2
        assert (await trainer.ended(), await explorer.ended()) == (0, 0)
    # Every group below the frontier, and those beyond it that left, were trained once or dropped for lost weights.
    final = account(pair)
    gone = final["groups_below_frontier"] + sum(len(ordinals) for ordinals in final["gone_beyond"].values())
    dropped = [event for event in trainer.events if event["event"] == "group_dropped"]
    assert gone == 2 * steps + len(dropped)
    assert {event["reason"] for event in dropped} <= {"lost_lineage"}


async def test_a_signal_ends_a_side_after_its_drain_with_the_code_of_the_signal(tmp_path: Path) -> None:
    settings = pair_settings(tmp_path / "runs", SLOW, PATIENT, {"trainer": {"total_steps": None}})
    async with processes(tmp_path, settings) as pair:
        trainer, explorer = pair.start("trainer"), pair.start("explorer")
        await trainer.until(lambda status: status.step >= 2)
        trainer.send(signal.SIGTERM)
        assert await trainer.ended() == 143
        (saved,) = [event for event in trainer.events if event["event"] == "checkpoint_saved"]
        assert saved["step"] >= 2
        explorer.send(signal.SIGINT)
        assert await explorer.ended() == 130
        assert explorer.events[-1]["event"] == "explored"
    for service in pair.started:
        assert "Traceback" not in service.log.read_text()


async def test_what_cannot_work_ends_at_once_with_the_reason_and_no_traceback(tmp_path: Path) -> None:
    settings = pair_settings(tmp_path / "runs", PATIENT, {"monitor": {"log_format": "json"}})
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the run's folder should be")
    async with processes(tmp_path, settings) as pair:
        first = pair.start("trainer")
        unwritable = pair.start("trainer", "--set", f"run.root={occupied}", "--set", "trainer.address=127.0.0.1:0")
        bad = [
            pair.start("trainer", "--set", "trainer.batch_sizes=3"),
            pair.start("explorer", "--set", "taskset.name=nowhere"),
        ]
        assert [await service.ended() for service in bad] == [2, 2]
        assert "batch_size" in bad[0].log.read_text()
        assert "nowhere" in bad[1].log.read_text()

        await first.until(lambda status: any(wait.waiting_for == "an explorer" for wait in status.waits))
        second = pair.start("trainer", "--set", "trainer.address=127.0.0.1:0")
        busy = pair.start("explorer", "--set", f"explorer.address={settings['trainer']['address']}")
        assert await second.ended() == 2
        assert f"process {first.process.pid}" in second.events[-1]["error"]
        assert await busy.ended() == 2
        assert settings["trainer"]["address"] in busy.events[-1]["error"]
        assert await unwritable.ended() == 1
        assert str(occupied) in unwritable.events[-1]["error"]
        for service in pair.started:
            assert "Traceback" not in service.log.read_text()


async def test_a_side_that_nobody_joins_gives_up_with_the_cause(tmp_path: Path) -> None:
    alone = {"peer_timeout": 1}
    settings = pair_settings(
        tmp_path / "runs", {"trainer": alone, "explorer": alone, "monitor": {"log_format": "json"}}
    )
    async with processes(tmp_path, settings) as pair:
        # On addresses where they do not find each other.
        trainer = pair.start("trainer", "--set", f"trainer.address={free_address()}", "--set", "explorers=[]")
        explorer = pair.start("explorer", "--set", f"explorer.address={free_address()}")
        assert [await service.ended() for service in pair.started] == [1, 1]
    for service, missing in ((trainer, "no explorer for 1 seconds"), (explorer, "no trainer for 1 seconds")):
        last = service.events[-1]
        assert (last["event"], last["reason"]) == ("run_failed", "PEER_UNAVAILABLE")
        assert missing in last["error"]
