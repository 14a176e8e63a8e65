"""Rewards of a response's length."""

from __future__ import annotations

from common.errors import WorkflowFailed
from explorer_service.rewards.base import inline
from explorer_service.rewards.registry import REWARDS
from explorer_service.tasksets.base import Task


@REWARDS.register("length_words")
@inline
def length_words(task: Task, response: str, *, target: int | None = None) -> dict[str, float]:
    """max(0, 1 - |words - target| / target), and the metric `words`.

    The target is the option, or else the task's answer.
    """
    if target is None:
        if task.answer is None or not task.answer.strip().isdecimal():
            raise WorkflowFailed(f"length_words: no `target`, and the answer of task {task.task_id!r} is no number")
        target = int(task.answer)
    if target < 1:
        raise WorkflowFailed(f"length_words: `target` is {target}, at least 1 is needed")
    words = len(response.split())
    return {"reward": max(0.0, 1 - abs(words - target) / target), "words": float(words)}
