"""Calls a reward, and trusts nothing that it returns."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any

from common.errors import WorkflowFailed
from explorer_service.rewards.base import Reward, Score, runs_inline
from explorer_service.rewards.threads import CallThreads
from explorer_service.tasksets.base import Task

# Rewards are float32 on the wire.
_LARGEST = 3.4028234e38
MAX_METRICS = 64
"""Metrics are columns of a log: a reward that makes up names for each response would fill memory."""


class Scorer:
    """Scores responses with one reward.

    A plain function runs in a thread unless it is marked `inline`, an async one on the event loop. There is no timeout
    here: the rollout's ends the wait.
    """

    def __init__(self, reward: Reward, options: Mapping[str, Any], *, threads: int = 8) -> None:
        self._reward = reward
        self._options = dict(options)
        self.is_inline = runs_inline(reward) and not _is_async(reward)
        """Whether a call neither waits nor blocks."""
        self._threads = None if self.is_inline or _is_async(reward) else CallThreads(threads)

    async def __call__(self, task: Task, response: str) -> Score:
        """The checked score. Raises WorkflowFailed when the reward raises or returns anything but finite numbers."""
        try:
            if self._threads is None:
                value = self._reward(task, response, **self._options)
            else:
                value = await self._threads.call(lambda: self._reward(task, response, **self._options))
            if inspect.isawaitable(value):
                value = await value
            return check_score(value)
        except WorkflowFailed as error:
            raise WorkflowFailed(f"the reward of task {task.task_id!r} failed: {error.message}") from error
        except Exception as error:
            message = f"the reward of task {task.task_id!r} failed: {type(error).__name__}: {error}"
            raise WorkflowFailed(message) from error


def check_score(value: object) -> Score:
    """The reward and the metrics in what a reward returned. Raises WorkflowFailed for anything but finite numbers."""
    if not isinstance(value, Mapping):
        return Score(finite_number(value, "the reward"))
    if "reward" not in value:
        raise WorkflowFailed("the reward returned a mapping without the key 'reward'")
    metrics = {name: number for name, number in value.items() if name != "reward"}
    return Score(finite_number(value["reward"], "the reward"), check_metrics(metrics))


def check_metrics(metrics: Mapping[Any, object]) -> dict[str, float]:
    """The metrics as floats. Raises WorkflowFailed for names that are no text, values that are no numbers, or too many."""
    if len(metrics) > MAX_METRICS:
        raise WorkflowFailed(f"{len(metrics)} metrics, at most {MAX_METRICS} are allowed")
    for name in metrics:
        if not isinstance(name, str):
            raise WorkflowFailed(f"a metric's name is {name!r}, which is no text")
    return {name: finite_number(value, f"metric {name!r}") for name, value in metrics.items()}


def finite_number(value: object, what: str) -> float:
    """The value as a float that float32 can hold. Raises WorkflowFailed otherwise."""
    if not isinstance(value, numbers.Real):
        raise WorkflowFailed(f"{what} is a {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= _LARGEST:
        raise WorkflowFailed(f"{what} is {number}, not a finite number")
    return number


def _is_async(reward: Reward) -> bool:
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(getattr(reward, "__call__", None))  # noqa: B004 - the method is looked at, not tested for
