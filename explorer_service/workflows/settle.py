"""Runs user code concurrently, so that what raises or hangs fails alone and on time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from common.errors import ShuttingDown, WorkflowFailed

Value = TypeVar("Value")

# Seconds for cancelled code to clean up after itself; what takes longer is left behind.
CANCEL_GRACE = 1.0


async def settle(attempts: Iterable[Coroutine[Any, Any, Value]], deadline: float) -> list[Value | WorkflowFailed]:
    """The outcomes in order, at the latest at `deadline` (of the event loop's clock) and a short grace.

    An attempt that raised, was cancelled or is not done by then gives a WorkflowFailed with its cause. ShuttingDown is
    no fault of an attempt's and is raised. When this call is cancelled, so are the attempts.
    """
    tasks = [asyncio.create_task(attempt) for attempt in attempts]
    for task in tasks:
        task.add_done_callback(_retrieve)
    loop = asyncio.get_running_loop()
    try:
        await _wait(tasks, max(0.0, deadline - loop.time()))
    finally:
        for task in tasks:
            task.cancel()
        await _wait([task for task in tasks if not task.done()], CANCEL_GRACE)
    return [_outcome(task) for task in tasks]


async def _wait(tasks: list[asyncio.Task[Value]], timeout: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


def _outcome(task: asyncio.Task[Value]) -> Value | WorkflowFailed:
    if not task.done() or task.cancelled():
        return WorkflowFailed("it was not done within explorer.rollout_timeout")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, ShuttingDown):
        raise error
    if isinstance(error, WorkflowFailed):
        return error
    failure = WorkflowFailed(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _retrieve(task: asyncio.Task[Any]) -> None:
    # One that is left behind may raise long after; asyncio would log that nobody asked.
    if not task.cancelled():
        task.exception()
