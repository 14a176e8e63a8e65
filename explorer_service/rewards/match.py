"""Rewards that compare a response with the task's answer."""

from __future__ import annotations

import math
import re

from common.errors import WorkflowFailed
from explorer_service.rewards.base import inline
from explorer_service.rewards.registry import REWARDS
from explorer_service.tasksets.base import Task

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@REWARDS.register("exact_match")
@inline
def exact_match(task: Task, response: str) -> float:
    """1 when the response is the answer, but for white space around it; else 0."""
    return float(response.strip() == _answer(task).strip())


@REWARDS.register("contains")
@inline
def contains(task: Task, response: str, *, ignore_case: bool = False) -> float:
    """1 when the answer occurs in the response; else 0."""
    answer = _answer(task).strip()
    return float(answer.casefold() in response.casefold() if ignore_case else answer in response)


@REWARDS.register("numeric")
@inline
def numeric(task: Task, response: str, *, tolerance: float = 1e-6) -> float:
    """1 when the last number in the response is the last one in the answer, within a relative tolerance; else 0."""
    expected = _last_number(_answer(task))
    if expected is None:
        raise WorkflowFailed(f"the answer of task {task.task_id!r} has no number")
    found = _last_number(response)
    return float(found is not None and math.isclose(found, expected, rel_tol=tolerance))


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    value = float(numbers[-1].replace(",", "")) if numbers else math.nan
    return value if math.isfinite(value) else None


def _answer(task: Task) -> str:
    if task.answer is None:
        raise WorkflowFailed(f"task {task.task_id!r} has no answer to compare with")
    return task.answer
