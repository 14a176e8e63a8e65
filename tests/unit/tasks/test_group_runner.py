import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Never

import pytest
from structlog.testing import capture_logs

from common.config.explorer import ExplorerConfig, SamplingConfig, TasksetConfig
from common.errors import ConfigError, ShuttingDown, WorkflowFailed
from common.experience.experience import ExperienceGroup
from explorer_service.engine.base import Completion
from explorer_service.group_runner import GroupRunner
from explorer_service.parts import build_taskset
from explorer_service.rewards import REWARDS, inline
from explorer_service.tasksets import Task
from explorer_service.workflows import WORKFLOWS, Policy, Rollout, RolloutWorkflow, Workflow
from tests.support.fake_policy import AnsweringEngine, CharacterTokenizer

TASK = Task("t", "6*7=", "42")
RELEASE = threading.Event()


@REWARDS.register("test_hang_on_7")
def hang_on_7(task: Task, response: str) -> float:
    if response == "7":
        RELEASE.wait(30)
    return 1.0


@REWARDS.register("test_nan_on_7")
def nan_on_7(task: Task, response: str, *, otherwise: float = 1.0) -> float | dict[str, float]:
    return float("nan") if response == "7" else {"reward": otherwise, "length": len(response)}


@REWARDS.register("test_inline_raises_on_7")
@inline
def inline_raises_on_7(task: Task, response: str) -> float:
    return {"42": 1.0}[response]


@REWARDS.register("test_judge")
class Judge:
    def __init__(self, bonus: float) -> None:
        self._bonus = bonus

    def __call__(self, task: Task, response: str) -> float:
        return self._bonus


@WORKFLOWS.register("test_short_group")
class ShortGroup(Workflow):
    async def run(self, task: Task, policies: Sequence[Policy], deadline: float) -> Sequence[Rollout | WorkflowFailed]:
        return []


@WORKFLOWS.register("test_stubborn")
class Stubborn(RolloutWorkflow):
    async def rollout(self, task: Task, policy: Policy) -> None:
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if RELEASE.is_set():
                    raise


@WORKFLOWS.register("test_twice")
class Twice(RolloutWorkflow):
    async def rollout(self, task: Task, policy: Policy) -> Rollout:
        transcript = policy.start(task.prompt)
        await policy.reply(transcript)
        policy.observe(transcript, "Again:")
        return transcript.finish(await self.score(task, await policy.reply(transcript)))


def runner_of(
    engine: AnsweringEngine,
    reward: str = "exact_match",
    workflow: str = "single_turn",
    reward_options: dict[str, Any] | None = None,
    **explorer: Any,
) -> GroupRunner:
    settings = {"group_size": 4, "rollout_retries": 0, "rollout_timeout": 5.0, **explorer}
    taskset = TasksetConfig(reward=reward, workflow=workflow, reward_options=reward_options or {})
    return GroupRunner(engine, CharacterTokenizer(), taskset, ExplorerConfig(**settings))


def sevens(count: int) -> AnsweringEngine:
    """The first `count` samples of each call say 7, the others 42."""
    return AnsweringEngine(lambda text, call, sample: "7" if sample < count else "42")


async def run(runner: GroupRunner, ordinal: int = 5, seed: int = 11, task: Task = TASK) -> ExperienceGroup:
    return await runner.run(task, ordinal=ordinal, explore_step=3, seed=seed)


async def test_a_group_carries_what_the_completions_say() -> None:
    group = await run(runner_of(sevens(1), send_text=True))
    assert (group.task_id, group.ordinal, group.explore_step, group.run_epoch) == ("t", 5, 3, 2)
    assert [experience.reward for experience in group.experiences] == [0, 1, 1, 1]
    assert (group.failed_rollouts, group.oldest_version) == (0, 7)
    assert group.experiences[0].response_text == "7"


async def test_texts_stay_behind_unless_they_are_asked_for() -> None:
    group = await run(runner_of(sevens(1)))
    assert {(experience.prompt_text, experience.response_text) for experience in group.experiences} == {("", "")}


async def test_metrics_are_averaged_over_the_rollouts_that_reported_them() -> None:
    group = await run(
        runner_of(
            AnsweringEngine(lambda text, call, sample: "x" * (sample + 1)), "length_words", reward_options={"target": 1}
        )
    )
    assert group.metrics == {"words": 1.0}
    group = await run(runner_of(AnsweringEngine(lambda text, call, sample: "x" * (sample + 1)), "test_nan_on_7"))
    assert group.metrics == {"length": 2.5}


async def test_partial_groups_go_on_with_at_least_two() -> None:
    group = await run(runner_of(sevens(2), "test_nan_on_7"))
    assert (len(group.experiences), group.failed_rollouts) == (2, 2)
    with pytest.raises(WorkflowFailed, match=r"'t': 3 of 4 rollouts failed: .*nan, not a finite number"):
        await run(runner_of(sevens(3), "test_nan_on_7"))


async def test_a_group_of_one_needs_its_one() -> None:
    assert len((await run(runner_of(sevens(0), "test_nan_on_7", group_size=1))).experiences) == 1
    with pytest.raises(WorkflowFailed, match="1 of 1"):
        await run(runner_of(sevens(1), "test_nan_on_7", group_size=1))


async def test_refill_gives_up_the_group_for_one_failed_rollout() -> None:
    with pytest.raises(WorkflowFailed, match="1 of 4 rollouts failed"):
        await run(runner_of(sevens(1), "test_nan_on_7", on_failed_rollout="refill"))


async def test_only_failed_rollouts_are_tried_again_and_with_new_seeds() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "7" if (call, sample) == (0, 2) else "42")
    group = await run(runner_of(engine, "test_nan_on_7", rollout_retries=2))
    assert [n for _, n, _, _ in engine.calls] == [4, 1]
    assert len({seed for _, _, _, seed in engine.calls}) == 2
    assert (len(group.experiences), group.failed_rollouts) == (4, 0)


async def test_a_rollout_that_keeps_failing_is_tried_so_often_and_logged_once() -> None:
    engine = sevens(1)
    with capture_logs() as logs:
        group = await run(runner_of(engine, "test_nan_on_7", rollout_retries=2))
    assert [n for _, n, _, _ in engine.calls] == [4, 1, 1]
    assert group.failed_rollouts == 1
    assert [(log["event"], log["task_id"], log["failed"], log["of"]) for log in logs] == [
        ("rollouts failed", "t", 1, 4)
    ]
    assert "not a finite number" in logs[0]["causes"][0]


async def test_an_error_of_the_engine_fails_the_rollouts_with_its_cause() -> None:
    def broken(text: str, call: int, sample: int) -> Never:
        raise RuntimeError("out of memory")

    with pytest.raises(WorkflowFailed, match="4 of 4 rollouts failed: RuntimeError: out of memory"):
        await run(runner_of(AnsweringEngine(broken)))


async def test_an_engine_that_shuts_down_is_no_failed_rollout() -> None:
    def closed(text: str, call: int, sample: int) -> Never:
        raise ShuttingDown("closed")

    for workflow in ("single_turn", "test_twice"):
        runner = runner_of(AnsweringEngine(closed), workflow=workflow, rollout_retries=3)
        with pytest.raises(ShuttingDown):
            await run(runner)
        with pytest.raises(ShuttingDown):
            await runner.evaluate([TASK] * 3, SamplingConfig(), 2)


async def test_an_engine_that_hangs_fails_the_rollouts_and_is_cancelled() -> None:
    engine = AnsweringEngine(lambda text, call, sample: ...)
    with pytest.raises(WorkflowFailed, match=r"4 of 4 rollouts failed: .*rollout_timeout"):
        await run(runner_of(engine, rollout_timeout=0.05))
    assert engine.cancelled == 1


async def test_a_reward_that_hangs_fails_its_rollout_alone() -> None:
    RELEASE.clear()
    group = await run(runner_of(sevens(1), "test_hang_on_7", rollout_timeout=0.2))
    assert (len(group.experiences), group.failed_rollouts) == (3, 1)
    RELEASE.set()


async def test_a_workflow_that_ignores_its_cancellation_is_left_behind() -> None:
    RELEASE.clear()
    with pytest.raises(WorkflowFailed, match="rollout_timeout"):
        await run(runner_of(sevens(0), workflow="test_stubborn", rollout_timeout=0.05, group_size=1))
    RELEASE.set()


async def test_a_workflow_that_returns_too_few_rollouts_fails() -> None:
    with pytest.raises(WorkflowFailed, match="not 4 rollouts"):
        await run(runner_of(sevens(0), workflow="test_short_group"))


async def test_a_workflow_of_ones_own_is_a_few_lines() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "42" if "Again:" in text else "7")
    group = await run(runner_of(engine, workflow="test_twice", send_text=True))
    assert [experience.reward for experience in group.experiences] == [1, 1, 1, 1]
    assert group.experiences[0].response_text == "7Again:42"


async def test_seeds_depend_on_run_group_and_task() -> None:
    async def seed_of(**arguments: Any) -> int | None:
        engine = sevens(0)
        await run(runner_of(engine), **arguments)
        return engine.calls[0][3]

    first = await seed_of()
    assert first == await seed_of()
    others = [await seed_of(ordinal=6), await seed_of(seed=12), await seed_of(task=Task("u", "6*7=", "42"))]
    assert len({first, *others}) == 4


async def test_cancelling_a_group_cancels_its_sequences() -> None:
    engine = AnsweringEngine(lambda text, call, sample: ...)
    group = asyncio.create_task(run(runner_of(engine)))
    await asyncio.sleep(0.05)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert engine.cancelled == 1


async def test_an_evaluation_counts_failures_beside_its_mean() -> None:
    tasks = [Task(str(index), "x" * (index + 1), "42") for index in range(4)]
    answers = {"x": "42", "xx": "42", "xxx": "7", "xxxx": "0"}
    runner = runner_of(AnsweringEngine(lambda text, call, sample: answers[text]), "test_nan_on_7")
    sampling = SamplingConfig(temperature=0.0)
    result = await runner.evaluate(tasks, sampling, 3)
    assert (result.reward_mean, result.tasks, result.failed) == (1.0, 3, 1)
    assert result.as_metrics() == {
        "eval/reward_mean": 1.0,
        "eval/tasks": 3,
        "eval/failed": 1,
        "eval/length": pytest.approx(5 / 3),
    }
    with pytest.raises(WorkflowFailed, match="none of 1 tasks"):
        await runner.evaluate(tasks[2:3], sampling, 3)
    with pytest.raises(WorkflowFailed, match="there are none"):
        await runner.evaluate([], sampling, 3)


async def test_an_evaluation_uses_its_sampling_and_never_more_than_its_concurrency() -> None:
    running, most = 0, 0

    class Counting(AnsweringEngine):
        async def generate(
            self, prompt: Sequence[int], n: int, sampling: SamplingConfig, seed: int | None = None
        ) -> list[Completion]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            completions = await super().generate(prompt, n, sampling, seed)
            running -= 1
            return completions

    engine = Counting(lambda text, call, sample: "42")
    sampling = SamplingConfig(temperature=0.0, max_tokens=9)
    result = await runner_of(engine).evaluate([TASK] * 10, sampling, 3)
    assert (result.reward_mean, result.tasks, most) == (1.0, 10, 3)
    assert all((n, used) == (1, sampling) for _, n, used, _ in engine.calls)


def test_parts_that_do_not_exist_or_do_not_take_their_options_are_refused() -> None:
    for change in (
        {"name": "digits"},
        {"name": "digit_skills", "options": {"digit": 3}},
        {"name": "digit_skills", "options": {"digits": "four"}},
        {"name": "jsonl", "options": {}},
    ):
        with pytest.raises(ConfigError):
            build_taskset(TasksetConfig(**change))
    for change in (
        {"reward": "exact"},
        {"reward": "exact_match", "reward_options": {"strip": True}},
        {"reward": "test_judge"},
        {"workflow": "one_turn"},
        {"workflow_options": {"turns": 2}},
    ):
        with pytest.raises(ConfigError):
            GroupRunner(sevens(0), CharacterTokenizer(), TasksetConfig(**change), ExplorerConfig())


async def test_a_reward_can_be_a_class_with_options() -> None:
    group = await run(runner_of(sevens(0), "test_judge", reward_options={"bonus": 3}))
    assert {experience.reward for experience in group.experiences} == {3.0}


async def test_a_response_that_an_inline_reward_cannot_score_fails_alone() -> None:
    group = await run(runner_of(sevens(1), "test_inline_raises_on_7"))
    assert (len(group.experiences), group.failed_rollouts) == (3, 1)
