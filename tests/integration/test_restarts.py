"""One side goes away and comes back: the run goes on, and nothing is trained twice or lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.pair_config import pair_config
from tests.support.pair_in_process import in_process, kill
from tests.support.trained_log import TrainedLog

SLOW = {"taskset": {"reward": "slow_digits"}}


async def test_each_side_says_that_it_waits_for_the_other(tmp_path: Path) -> None:
    config = pair_config(tmp_path, {"trainer": {"total_steps": 2}})
    async with in_process(config) as pair:
        pair.start_trainer()
        status = await pair.until(
            pair.trainer_status, lambda status: any(w.waiting_for == "an explorer" for w in status.waits)
        )
        (wait,) = [wait for wait in status.waits if wait.waiting_for == "an explorer"]
        assert wait.deadline.seconds - wait.since.seconds == pytest.approx(config.trainer.peer_timeout, abs=1)
        assert status.reason == "none is connected"
        await kill(pair.tasks.pop("trainer"))

        pair.start_explorer()
        status = await pair.until(
            pair.explorer_status, lambda status: status.reason == "the first weights from the trainer"
        )
        assert "a trainer's stream" in [wait.waiting_for for wait in status.waits]
        pair.start_trainer()
        await pair.both_end()


async def test_a_restarted_explorer_goes_on_where_its_spool_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    config = pair_config(tmp_path, SLOW, {"trainer": {"total_steps": 8}, "sync": {"offset": 1}})
    async with in_process(config) as pair:
        pair.start_trainer()
        for kill_at in (2, 5):
            pair.start_explorer()
            await pair.until(pair.trainer_status, lambda status, at=kill_at: status.step >= at)
            await kill(pair.tasks.pop("explorer"))
        pair.start_explorer()
        status = await pair.until(pair.explorer_status, lambda status: status.policy_version.run_epoch == 1)
        assert status.policy_version.step >= 4  # the current weights come first, not those that it once had
        await pair.both_end()
    assert sorted(log.ordinals(1)) == list(range(16))
    assert not log.dropped
    lines = (config.stage_folder / "metrics" / "trainer.jsonl").read_text().splitlines()
    staleness = [
        record["sample/staleness_max"] for record in map(json.loads, lines) if "sample/staleness_max" in record
    ]
    assert len(staleness) == 8
    assert max(staleness) <= 1  # as offset 1 promises


async def test_a_restarted_trainer_goes_on_from_its_checkpoint_and_trains_no_group_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    config = pair_config(
        tmp_path, SLOW, {"trainer": {"total_steps": 9}, "checkpoint": {"save_interval": 2}, "sync": {"offset": 1}}
    )
    async with in_process(config) as pair:
        pair.start_explorer()
        resumed = {}
        for epoch, kill_at in ((1, 3), (2, 5)):
            pair.start_trainer()
            status = await pair.until(pair.trainer_status, lambda status, at=kill_at: status.step >= at)
            assert status.run_epoch == epoch
            await kill(pair.tasks.pop("trainer"))
            resumed[epoch + 1] = max(int(path.name[5:13]) for path in config.checkpoint_root.glob("step_*"))
        pair.start_trainer()
        await pair.both_end()
    # The lineage: of every trainer the steps that the next one went on from, and all of the last one's.
    kept = {1: resumed[2], 2: resumed[3] - resumed[2], 3: 9 - resumed[3]}
    lineage = [ordinal for epoch, steps in kept.items() for ordinal in log.ordinals(epoch, steps)]
    assert len(lineage) == len(set(lineage)) == 18
    lost = {ordinal for _, ordinal, reason in log.dropped if reason == "lost_lineage"}
    assert not lost & set(lineage)
    assert set(range(max(lineage) + 1)) - set(lineage) <= lost | set(range(max(lineage) - 3, max(lineage)))


@pytest.mark.parametrize("style", ["fixed", "explorer_driven", "fully_async"])
async def test_a_trainer_that_starts_afresh_counts_what_the_explorer_has_forgotten_as_lost(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    settings: dict[str, Any] = {
        "trainer": {"total_steps": 6},
        "checkpoint": {"save_interval": 1},
        "sync": {"style": style, "max_staleness": None if style == "fixed" else 2},
    }
    config = pair_config(tmp_path, SLOW, settings)
    afresh = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"resume": False})})
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 3 and status.explorers[0].frontier >= 2)
        await kill(pair.tasks.pop("trainer"))
        with structlog.testing.capture_logs() as events:
            pair.start_trainer(afresh)
            await pair.both_end()
    (lost,) = [event for event in events if event["event"] == "experiences_lost_with_checkpoint"]
    assert lost["groups"] >= 2
    assert len(log.ordinals(2)) == 12
    assert not set(log.ordinals(2)) & set(range(lost["groups"]))


@pytest.mark.parametrize("offset", [0, 1])
async def test_a_corrupt_newest_checkpoint_costs_its_steps_and_no_more(
    offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    config = pair_config(
        tmp_path, SLOW, {"trainer": {"total_steps": 7}, "checkpoint": {"save_interval": 1}, "sync": {"offset": offset}}
    )
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.saved_step >= 4)
        await kill(pair.tasks.pop("trainer"))
        newest = max(config.checkpoint_root.glob("step_*"))
        (newest / "model.safetensors").write_bytes(b"torn")
        pair.start_trainer()
        status = await pair.until(pair.trainer_status, lambda status: status.step > 0)
        assert status.run_epoch == 2
        await pair.both_end()
    kept = int(newest.name[5:13]) - 1
    lineage = log.ordinals(1, kept) + log.ordinals(2)
    assert len(lineage) == len(set(lineage)) == 14
