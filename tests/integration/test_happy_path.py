"""A run without faults: every experience is trained once, on-policy where that is promised, to the end of the data."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.config.root import TandemConfig
from explorer_service.rewards import REWARDS
from explorer_service.tasksets import Task
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import in_process
from tests.support.trained_log import TrainedLog

TASKS = 11
UNANSWERABLE = ("line-8", "line-11")


@REWARDS.register("refuses_some")
def refuses_some(task: Task, response: str) -> float:
    """A reward that fails for two of the tasks, the last one among them."""
    if task.task_id in UNANSWERABLE:
        raise ValueError(f"no answer to {task.task_id}")
    return float(len(response))


def records(config: TandemConfig, service: str) -> list[dict[str, Any]]:
    lines = (config.stage_folder / "metrics" / f"{service}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def finite_taskset(folder: Path, **options: Any) -> dict[str, Any]:
    path = folder / "tasks.jsonl"
    lines = [{"prompt": f"s{number:03}=", "answer": "1"} for number in range(TASKS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"name": "jsonl", "options": {"path": str(path)}, "epochs": 1, **options}


async def test_on_policy_logprobs_of_both_sides_agree_at_a_temperature_that_is_not_one(tmp_path: Path) -> None:
    config = pair_config(
        tmp_path,
        {"explorer": {"sampling": {"temperature": 0.7}}, "sync": {"style": "fixed", "interval": 1, "offset": 0}},
    )
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.both_end()
    steps = [record for record in records(config, "trainer") if "parity/max_logprob_diff" in record]
    assert len(steps) == 4
    assert max(step["parity/max_logprob_diff"] for step in steps) <= 1e-5
    assert [step["sample/staleness_max"] for step in steps] == [0, 0, 0, 0]
    assert any(step["grad/norm"] > 0 for step in steps)


async def test_a_finite_taskset_is_trained_once_to_its_last_partial_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    config = pair_config(
        tmp_path, {"taskset": finite_taskset(tmp_path), "trainer": {"total_steps": None}, "sync": {"offset": 1}}
    )
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        await pair.both_end()
    assert log.tasks(1) == {f"line-{number}": 1 for number in range(1, TASKS + 1)}
    assert sorted(log.ordinals(1)) == list(range(TASKS))
    assert [len(step) for step in log.lives[1]] == [2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("style", ["fixed", "trainer_driven", "explorer_driven", "fully_async"])
async def test_groups_that_fail_at_the_end_of_the_data_hold_up_nobody(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    config = pair_config(
        tmp_path,
        {
            "taskset": finite_taskset(tmp_path, reward="refuses_some", shuffle=False),
            "trainer": {"total_steps": None},
            "explorer": {"rollout_retries": 0},
            "sync": {"style": style, "max_staleness": 1 if style != "fixed" else None},
        },
    )
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        await pair.both_end()
    assert log.tasks(1) == {
        f"line-{number}": 1 for number in range(1, TASKS + 1) if f"line-{number}" not in UNANSWERABLE
    }
