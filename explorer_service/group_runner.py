"""Runs the rollouts of one task: timeouts, retries, and what becomes of a group when some fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from common.config.explorer import ExplorerConfig, SamplingConfig, TasksetConfig
from common.errors import WorkflowFailed
from common.experience.experience import Experience, ExperienceGroup
from explorer_service.engine.base import RolloutEngine
from explorer_service.parts import build_workflow
from explorer_service.tasksets import Task
from explorer_service.workflows import Policy, Rollout, Tokenizer
from explorer_service.workflows.rollout import check_rollout
from explorer_service.workflows.settle import CANCEL_GRACE, settle

_log = structlog.get_logger(__name__)

# A workflow ends its rollouts at the deadline and may take a grace to do so; what ignores both is cut off after this.
_BACKSTOP = 2 * CANCEL_GRACE
# A baseline needs two to compare.
_SMALLEST_GROUP = 2


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What an evaluation found."""

    reward_mean: float
    """Over the tasks that were scored."""
    metrics: Mapping[str, float]
    """What rewards and workflows reported, averaged."""
    tasks: int
    """Tasks that were scored."""
    failed: int
    """Tasks whose rollout failed; they are in no mean."""

    def as_metrics(self) -> dict[str, float]:
        """For the log: `eval/reward_mean`, `eval/tasks`, `eval/failed`, and `eval/` before each other name."""
        reported = {f"eval/{name}": value for name, value in self.metrics.items()}
        own = {"eval/reward_mean": self.reward_mean, "eval/tasks": self.tasks, "eval/failed": self.failed}
        return {**reported, **own}


class GroupRunner:
    """Makes a group of experiences from a task. Holds no state between groups; any number may run at once."""

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        taskset: TasksetConfig,
        explorer: ExplorerConfig,
        *,
        max_length: int | None = None,
    ) -> None:
        """Builds workflow and reward of the taskset section; raises ConfigError when they cannot be.

        `max_length` is `model.max_length`; with it, prompts that are too long fail with a reason instead of in the engine.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._explorer = explorer
        self._max_length = max_length
        self._workflow = build_workflow(taskset)

    async def run(self, task: Task, *, ordinal: int, explore_step: int, seed: int) -> ExperienceGroup:
        """The task's group, made with seeds that depend on `seed`, `ordinal`, the task's name and the rollout alone.

        Takes at most (`rollout_retries` + 1) times `rollout_timeout`, and a short grace. Raises WorkflowFailed when too
        few rollouts succeed (`on_failed_rollout: partial`: less than two of a group of several; `refill`: any less than
        all), and ShuttingDown when the engine does.
        """
        size = self._explorer.group_size
        rollouts = await self._rollouts(task, size, self._explorer.sampling, (seed, ordinal, task.task_id))
        made = [rollout for rollout in rollouts if isinstance(rollout, Rollout)]
        needed = size if self._explorer.on_failed_rollout == "refill" else min(size, _SMALLEST_GROUP)
        if len(made) < needed:
            failures = [rollout for rollout in rollouts if isinstance(rollout, WorkflowFailed)]
            raise WorkflowFailed(
                f"task {task.task_id!r}: {len(failures)} of {size} rollouts failed: {failures[0].message}",
                task_id=task.task_id,
            ) from failures[0]
        return ExperienceGroup(
            task_id=task.task_id,
            ordinal=ordinal,
            explore_step=explore_step,
            # The oldest: a trainer that started since then must see that older weights were used.
            run_epoch=min(rollout.run_epoch for rollout in made),
            experiences=[self._sent(experience) for rollout in made for experience in rollout.experiences],
            metrics=_average(rollout.metrics for rollout in made),
            failed_rollouts=size - len(made),
        )

    async def evaluate(
        self, tasks: Sequence[Task], sampling: SamplingConfig, concurrency: int, *, seed: int = 0
    ) -> EvaluationResult:
        """Runs each task once, at most `concurrency` at a time, with the same timeout and retries.

        The result does not depend on the order in which tasks end. Raises WorkflowFailed when every one of them fails.
        """
        outcomes: list[Rollout | WorkflowFailed | None] = [None] * len(tasks)
        waiting = iter(enumerate(tasks))

        async def work(waiting: Iterator[tuple[int, Task]]) -> None:
            for index, task in waiting:
                (outcomes[index],) = await self._rollouts(task, 1, sampling, (seed, "evaluation", index, task.task_id))

        # Not asyncio.TaskGroup: its ExceptionGroup would hide the ShuttingDown that callers wait for.
        workers = [asyncio.create_task(work(waiting)) for _ in range(max(1, min(concurrency, len(tasks))))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        made = [outcome for outcome in outcomes if isinstance(outcome, Rollout)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, WorkflowFailed)]
        if not made:
            cause = failures[0] if failures else None
            reason = cause.message if cause else "there are none"
            raise WorkflowFailed(f"evaluation: none of {len(tasks)} tasks could be scored: {reason}") from cause
        reward_mean = sum(rollout.reward for rollout in made) / len(made)
        return EvaluationResult(reward_mean, _average(rollout.metrics for rollout in made), len(made), len(failures))

    async def _rollouts(
        self, task: Task, count: int, sampling: SamplingConfig, seed_key: tuple[int | str, ...]
    ) -> list[Rollout | WorkflowFailed]:
        """The outcome of each of `count` rollouts, after the retries."""
        outcomes: dict[int, Rollout | WorkflowFailed] = {}
        missing = list(range(count))
        for attempt in range(self._explorer.rollout_retries + 1):
            policies = [
                Policy(self._engine, self._tokenizer, sampling, (*seed_key, sample, attempt), self._max_length)
                for sample in missing
            ]
            outcomes.update(zip(missing, await self._attempt(task, policies), strict=True))
            missing = [sample for sample, outcome in outcomes.items() if isinstance(outcome, WorkflowFailed)]
            if not missing:
                break
        else:
            causes = sorted({outcome.message for outcome in outcomes.values() if isinstance(outcome, WorkflowFailed)})
            _log.warning("rollouts failed", task_id=task.task_id, failed=len(missing), of=count, causes=causes[:3])
        return [outcomes[sample] for sample in range(count)]

    async def _attempt(self, task: Task, policies: Sequence[Policy]) -> list[Rollout | WorkflowFailed]:
        deadline = asyncio.get_running_loop().time() + self._explorer.rollout_timeout
        (outcome,) = await settle([self._checked(task, policies, deadline)], deadline + _BACKSTOP)
        return [outcome] * len(policies) if isinstance(outcome, WorkflowFailed) else outcome

    async def _checked(self, task: Task, policies: Sequence[Policy], deadline: float) -> list[Rollout | WorkflowFailed]:
        outcomes = await self._workflow.run(task, policies, deadline)
        if not isinstance(outcomes, Sequence) or len(outcomes) != len(policies):
            raise WorkflowFailed(f"the workflow returned {outcomes!r:.80}, not {len(policies)} rollouts")
        return [outcome if isinstance(outcome, WorkflowFailed) else _checked_rollout(outcome) for outcome in outcomes]

    def _sent(self, experience: Experience) -> Experience:
        return experience if self._explorer.send_text else replace(experience, prompt_text="", response_text="")


def _checked_rollout(rollout: object) -> Rollout | WorkflowFailed:
    try:
        return check_rollout(rollout)
    except WorkflowFailed as failure:
        return failure


def _average(reported: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the rollouts that reported it."""
    values: dict[str, list[float]] = {}
    for metrics in reported:
        for name, value in metrics.items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(numbers) / len(numbers) for name, numbers in sorted(values.items())}
