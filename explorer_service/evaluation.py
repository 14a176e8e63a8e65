"""Evaluation on held-out tasks, at one pinned version of the weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from common.config.root import TandemConfig
from common.errors import WorkflowFailed
from explorer_service.group_runner import GroupRunner
from explorer_service.tasksets import Task, Taskset
from explorer_service.weight_intake import WeightIntake

log = structlog.get_logger(__name__)


class Evaluator:
    """Runs the eval taskset; while it does, no other version is swapped in."""

    def __init__(
        self, config: TandemConfig, runner: GroupRunner | None, taskset: Taskset | None, weights: WeightIntake
    ) -> None:
        """Without a taskset there is nothing to evaluate."""
        self._config = config.explorer.evaluation
        self._seed = config.run.seed
        self._concurrency = config.explorer.max_sequences
        self._runner = runner
        self._tasks = _tasks(taskset, self._config.max_tasks) if taskset is not None else []
        self._weights = weights
        self._pin = asyncio.Lock()
        self._evaluated: tuple[tuple[int, int], dict[str, float]] | None = None

    @asynccontextmanager
    async def unpinned(self) -> AsyncIterator[None]:
        """The block may swap the weights; it starts when no evaluation runs."""
        async with self._pin:
            yield

    async def evaluate(self, max_tasks: int = 0) -> dict[str, float] | None:
        """The metrics, `eval/reward_mean` among them; None without an eval taskset.

        A whole evaluation of the same version is not repeated. Raises WorkflowFailed when every task fails.
        """
        if self._runner is None or not self._tasks:
            return None
        async with self._pin:
            live = self._weights.live.order
            if max_tasks == 0 and self._evaluated is not None and self._evaluated[0] == live:
                return self._evaluated[1]
            began = time.monotonic()
            tasks = self._tasks[: max_tasks or None]
            result = await self._runner.evaluate(tasks, self._config.sampling, self._concurrency, seed=self._seed)
            values = {
                **result.as_metrics(),
                "eval/policy_version": float(live[1]),
                "time/eval": time.monotonic() - began,
            }
            log.info("evaluated", step=live[1], reward_mean=round(result.reward_mean, 4), tasks=result.tasks)
            if max_tasks == 0:
                self._evaluated = (live, values)
            return values


def _tasks(taskset: Taskset, max_tasks: int | None) -> list[Task]:
    count = len(taskset) if max_tasks is None else min(max_tasks, len(taskset))
    if count == 0:
        raise WorkflowFailed("the eval taskset has no tasks")
    return [taskset.task(index) for index in range(count)]
