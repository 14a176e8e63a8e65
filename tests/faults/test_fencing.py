"""Who was stopped, replaced, and comes back: it can do nothing to the run that goes on without it."""

import signal
from pathlib import Path
from typing import Any

import pytest

from common.checkpoint.run_lock import LOCK_NAME
from tests.support.pair import processes
from tests.support.pair_config import free_address, pair_settings

pytestmark = [pytest.mark.timeout(600)]

PATIENT = {
    "trainer": {"total_steps": None, "peer_timeout": 250},
    "explorer": {"peer_timeout": 250},
    "monitor": {"log_format": "json"},
    "taskset": {"reward": "slow_digits"},
    "checkpoint": {"save_interval": 2, "keep": 50},
}


def _last(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(event for event in reversed(events) if event["event"] == name)


@pytest.mark.parametrize("method", ["shards", pytest.param("checkpoint", marks=pytest.mark.slow_faults)])
async def test_a_trainer_that_was_replaced_while_it_hung_cannot_push_ack_or_save(method: str, tmp_path: Path) -> None:
    settings = pair_settings(
        tmp_path / "runs", PATIENT, {"sync": {"style": "fully_async", "method": method}, "explorer": {"trainer": None}}
    )
    checkpoints = tmp_path / "runs" / "pair" / "main" / "checkpoints"
    async with processes(tmp_path, settings) as pair:
        zombie, explorer = pair.start("trainer"), pair.start("explorer")
        await zombie.until(lambda status: status.saved_step >= 2)
        zombie.send(signal.SIGSTOP)
        # As on a file system that does not pass locks on to the successor's machine.
        (checkpoints / LOCK_NAME).unlink()
        successor = pair.start("trainer", "--set", f"trainer.address={free_address()}")
        reached = await successor.until(lambda status: status.saved_step >= 6)
        assert reached.run_epoch == 2
        of_the_zombie = {path.name for path in checkpoints.glob("step_*-e1")}
        zombie.send(signal.SIGCONT)
        assert await zombie.ended() == 1
        failed = _last(zombie.events, "run_failed")
        assert failed["reason"] == "STALE_EPOCH"
        assert "2 was" in failed["error"] or "2 came" in failed["error"]
        assert {path.name for path in checkpoints.glob("step_*-e1")} == of_the_zombie
        # Nobody was told to stop, and nothing older was applied.
        await successor.until(lambda status: status.step >= reached.step + 6)
        assert explorer.process.poll() is None
        applied = [(e["epoch"], e["step"]) for e in explorer.events if e["event"] == "weights_applied"]
        assert applied == sorted(applied)
        successor.send(signal.SIGTERM)
        assert await successor.ended() == 128 + signal.SIGTERM


@pytest.mark.slow_faults
async def test_a_second_trainer_beside_one_that_hangs_is_told_of_it_and_the_run_goes_on(tmp_path: Path) -> None:
    settings = pair_settings(tmp_path / "runs", PATIENT)
    async with processes(tmp_path, settings) as pair:
        trainer, _ = pair.start("trainer"), pair.start("explorer")
        await trainer.until(lambda status: status.step >= 2)
        trainer.send(signal.SIGSTOP)
        second = pair.start("trainer", "--set", f"trainer.address={free_address()}")
        assert await second.ended() == 2
        assert f"process {trainer.process.pid}" in second.events[-1]["error"]
        trainer.send(signal.SIGCONT)
        before = await trainer.until(lambda _status: True)
        await trainer.until(lambda status: status.step >= before.step + 4)


@pytest.mark.slow_faults
async def test_an_explorer_that_hung_for_longer_than_keepalive_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = pair_settings(tmp_path / "runs", PATIENT)
    async with processes(tmp_path, settings) as pair:
        trainer, explorer = pair.start("trainer"), pair.start("explorer")
        await trainer.until(lambda status: status.step >= 2)
        explorer.send(signal.SIGSTOP)
        await trainer.until(lambda status: not status.explorers[0].connected)
        twin = pair.start("explorer", "--set", f"explorer.address={free_address()}")
        assert await twin.ended() == 1
        assert "spool" in twin.events[-1]["error"]
        explorer.send(signal.SIGCONT)
        before = await trainer.until(lambda status: status.explorers[0].connected)
        await trainer.until(lambda status: status.step >= before.step + 4)


@pytest.mark.slow_faults
@pytest.mark.parametrize("style", ["fixed", "explorer_driven", "fully_async"])
async def test_an_explorer_that_is_given_up_and_comes_back_takes_part_again(style: str, tmp_path: Path) -> None:
    settings = pair_settings(
        tmp_path / "runs",
        PATIENT,
        {"trainer": {"explorer_timeout": 2, "batch_size": 4}, "sync": {"style": style}},
    )
    addresses = [settings["explorer"]["address"], free_address()]
    settings["explorers"] = [{"address": address} for address in addresses]
    async with processes(tmp_path, settings) as pair:
        trainer = pair.start("trainer")
        explorers = [
            pair.start("explorer", "--set", f"explorer.id=explorer-{at}", "--set", f"explorer.address={address}")
            for at, address in enumerate(addresses)
        ]
        both = await trainer.until(lambda status: sum(one.connected for one in status.explorers) == 2)
        await trainer.until(lambda status: status.step >= both.step + 2)
        explorers[1].send(signal.SIGSTOP)
        alone = await trainer.until(lambda status: sum(one.connected for one in status.explorers) == 1)
        await trainer.until(lambda _status: any(event["event"] == "explorer_given_up" for event in trainer.events))
        await trainer.until(lambda status: status.step >= alone.step + 4)
        explorers[1].send(signal.SIGCONT)
        again = await trainer.until(lambda status: sum(one.connected for one in status.explorers) == 2)
        await trainer.until(
            lambda status: all(
                now.received_through > before.received_through
                for now, before in zip(status.explorers, again.explorers, strict=True)
            )
        )


@pytest.mark.slow_faults
@pytest.mark.parametrize("side", ["trainer", "explorer"])
async def test_a_clock_that_steps_an_hour_forth_and_back_changes_nothing(side: Any, tmp_path: Path) -> None:
    settings = pair_settings(
        tmp_path / "runs", PATIENT, {"plugins": ["tests.support.reward_plugin", "tests.support.clock_plugin"]}
    )
    clock = tmp_path / "clock"
    async with processes(tmp_path, settings) as pair:
        services = {
            name: pair.start(name, environment={"CLOCK_FILE": str(clock)} if name == side else {})
            for name in ("trainer", "explorer")
        }
        trainer = services["trainer"]
        status = await trainer.until(lambda status: status.step >= 2)
        for hours in (1, -1, 25, 0):
            clock.write_text(str(3600 * hours))
            status = await trainer.until(lambda now, at=status.step + 4: now.step >= at)
        trainer.send(signal.SIGTERM)
        assert await trainer.ended() == 128 + signal.SIGTERM
        stamps = [event["timestamp"] for event in services[side].events]
        assert stamps != sorted(stamps)  # it did step
