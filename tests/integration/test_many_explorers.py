"""Several explorers and one trainer: they share the tasks, come late, and leave without holding anybody up."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from common.config.root import TandemConfig
from common.sync.policy import Method, Style
from explorer_service.parts import build_taskset
from protos.tandem.v1 import trainer_pb2
from tests.support.pair_config import free_address, pair_config
from tests.support.pair_in_process import InProcessPair, in_process, kill
from tests.support.trained_log import TrainedLog

TASKS = 24
MATRIX = [
    (Style.FIXED, Method.SHARDS),
    (Style.TRAINER_DRIVEN, Method.CHECKPOINT),
    (Style.EXPLORER_DRIVEN, Method.SHARDS),
    (Style.FULLY_ASYNC, Method.CHECKPOINT),
]
SLOW = {"taskset": {"reward": "slow_digits"}}
ONE_EPOCH = {"trainer": {"total_steps": None}, "taskset": {"options": {"count": TASKS}, "epochs": 1}}


def many_config(root: Path, explorers: int, *overrides: dict[str, Any], listed: bool = True) -> list[TandemConfig]:
    """The configuration of each explorer; the trainer's is the first one. Not listed, they register."""
    addresses = [free_address() for _ in range(explorers)]
    dialled = [{"address": address} for address in addresses] if listed else []
    balanced = {"explorers": dialled, "trainer": {"batch_size": 2 * explorers}}
    first = pair_config(root, balanced, *overrides)
    return [
        first.model_copy(
            update={
                "explorer": first.explorer.model_copy(
                    update={"id": f"explorer-{index}", "address": address, "threads": 1}
                )
            }
        )
        for index, address in enumerate(addresses)
    ]


def each_task_once(log: TrainedLog, config: TandemConfig) -> bool:
    """Whether the first trainer trained every task of the taskset, and each once."""
    taskset = build_taskset(config.taskset)
    return log.tasks(1) == Counter(taskset.task(index).task_id for index in range(len(taskset)))


async def stands_at(pair: InProcessPair, step: int) -> None:
    await pair.until(pair.trainer_status, lambda status: status.step >= step)


@pytest.mark.parametrize(("style", "method"), MATRIX, ids=[f"{style}-{method}" for style, method in MATRIX])
async def test_three_explorers_share_the_tasks_of_an_epoch(
    style: Style, method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    sync = {"sync": {"style": style.value, "method": method.value}, "checkpoint": {"save_interval": 1}}
    configs = many_config(tmp_path, 3, ONE_EPOCH, sync, listed=method is Method.SHARDS)
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        await pair.both_end()
    assert each_task_once(log, configs[0])
    makers = {explorer for step in log.lives[1] for explorer, _, _ in step}
    # Dealt by demand: a late one may find nothing left to do.
    assert len(makers) > 1


@pytest.mark.parametrize("style", list(Style))
async def test_those_that_are_left_do_the_tasks_of_one_that_is_gone(
    style: Style, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    configs = many_config(
        tmp_path, 3, ONE_EPOCH, SLOW, {"sync": {"style": style.value}}, {"trainer": {"explorer_timeout": 0.5}}
    )
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        await stands_at(pair, 1)
        await kill(pair.tasks.pop("explorer-2"))
        await pair.both_end()
    assert each_task_once(log, configs[0])


async def test_one_that_comes_back_in_time_brings_what_it_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    configs = many_config(tmp_path, 2, ONE_EPOCH, SLOW)
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        await stands_at(pair, 2)
        await kill(pair.tasks.pop("explorer-1"))
        pair.start_explorer(configs[1], "explorer-1")
        await pair.both_end()
    assert each_task_once(log, configs[0])
    assert not log.dropped


async def test_one_that_was_given_up_comes_back_and_nothing_is_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    configs = many_config(tmp_path, 2, ONE_EPOCH, SLOW, {"trainer": {"explorer_timeout": 0.3}})
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        await stands_at(pair, 1)
        await kill(pair.tasks.pop("explorer-1"))
        await asyncio.sleep(0.6)
        pair.start_explorer(configs[1], "explorer-1")
        await pair.both_end()
    assert each_task_once(log, configs[0])


async def test_a_joiner_gets_the_current_weights_and_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = TrainedLog(monkeypatch)
    configs = many_config(tmp_path, 2, SLOW, {"trainer": {"batch_size": 2, "total_steps": 10}}, listed=False)
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        pair.start_explorer(configs[0], "explorer-0")
        await stands_at(pair, 3)
        pair.start_explorer(configs[1], "explorer-1")
        await pair.both_end()
    joined = [step for step, groups in enumerate(log.lives[1], 1) if any(name == "explorer-1" for name, _, _ in groups)]
    assert joined
    assert min(joined) > 3


async def test_below_min_explorers_the_trainer_waits_and_says_so(tmp_path: Path) -> None:
    configs = many_config(tmp_path, 2, {"trainer": {"min_explorers": 2, "total_steps": 3}})
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        pair.start_explorer(configs[0], "explorer-0")
        status = await pair.until(
            pair.trainer_status, lambda status: any("2 explorers" in wait.waiting_for for wait in status.waits)
        )
        assert status.state == trainer_pb2.TRAINER_STATE_WAITING_FOR_EXPLORERS
        assert status.step == 0
        pair.start_explorer(configs[1], "explorer-1")
        await pair.both_end()


async def test_a_run_with_too_few_explorers_ends_with_the_reason(tmp_path: Path) -> None:
    configs = many_config(tmp_path, 2, {"trainer": {"min_explorers": 2, "peer_timeout": 1}})
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        pair.start_explorer(configs[0], "explorer-0")
        error = await pair.failure("trainer")
        assert "2 explorers (trainer.min_explorers)" in str(error)


async def test_a_task_that_fails_is_replaced_and_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    settings = {
        "taskset": {"reward": "picky"},
        "explorer": {"rollout_retries": 0, "max_failed_groups": TASKS},
    }
    configs = many_config(tmp_path, 2, ONE_EPOCH, settings)
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        await pair.both_end()
    taskset = build_taskset(configs[0].taskset)
    prompts = {taskset.task(index).task_id: str(taskset.task(index).prompt) for index in range(TASKS)}
    good = {task for task, prompt in prompts.items() if not prompt.startswith("s")}
    assert log.tasks(1) == Counter(good)
    assert 0 < len(good) < TASKS


async def test_an_explorer_with_other_tasks_is_refused(tmp_path: Path) -> None:
    configs = many_config(tmp_path, 2, SLOW)
    other = configs[1].model_copy(update={"taskset": configs[1].taskset.model_copy(update={"shuffle": False})})
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        pair.start_explorer(configs[0], "explorer-0")
        await stands_at(pair, 0)
        await pair.until(pair.trainer_status, lambda status: any(one.connected for one in status.explorers))
        pair.start_explorer(other, "explorer-1")
        error = await pair.failure("trainer")
        assert "another taskset, or another order of tasks" in str(error)


async def test_an_explorer_that_registers_and_is_unfit_is_left_out_and_told_why(tmp_path: Path) -> None:
    first, second = many_config(tmp_path, 2, SLOW, {"trainer": {"total_steps": 8, "batch_size": 2}}, listed=False)
    other = second.model_copy(update={"taskset": second.taskset.model_copy(update={"shuffle": False})})
    async with in_process(first) as pair:
        pair.start_trainer()
        pair.start_explorer(first, "explorer-0")
        await stands_at(pair, 1)
        pair.start_explorer(other, "explorer-1")
        refused = await pair.failure("explorer-1")
        assert "another taskset, or another order of tasks" in str(refused)
        del pair.tasks["explorer-1"]
        await pair.both_end()


async def test_one_explorer_too_many_for_fixed_is_left_out_instead_of_stopping_all(tmp_path: Path) -> None:
    # 100 steps of 2 groups; two explorers would make 4, and after 8 steps 16 would wait.
    settings = {"trainer": {"total_steps": 100, "batch_size": 2}, "buffer": {"max_groups": 16}}
    first, second = many_config(tmp_path, 2, settings, listed=False)
    async with in_process(first) as pair:
        pair.start_trainer()
        pair.start_explorer(first, "explorer-0")
        await stands_at(pair, 1)
        pair.start_explorer(second, "explorer-1")
        refused = await pair.failure("explorer-1")
        assert "with explorer explorer-1 the run would stop at trainer step 11" in str(refused)
        assert "2 explorers x 2 tasks" in str(refused)
        del pair.tasks["explorer-1"]
        await pair.both_end()
