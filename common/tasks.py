"""Groups of tasks that fail with the error itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Scope(asyncio.TaskGroup):
    """A group that knows its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._created: set[asyncio.Task[Any]] = set()

    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Result]:
        """As in a TaskGroup."""
        task = super().create_task(coro, name=name, context=context)
        self._created.add(task)
        task.add_done_callback(self._created.discard)
        return task

    async def until_empty(self) -> None:
        """Returns when all tasks are done; their errors are the group's business."""
        while self._created:
            await asyncio.wait(self._created)


@asynccontextmanager
async def task_scope() -> AsyncIterator[asyncio.TaskGroup]:
    """An `asyncio.TaskGroup` that raises its first error as it is, not in a group; the others stay in its notes.

    A cancellation from outside comes before any error. Where a task of the group fails because it is cancelled with its
    owner, a TaskGroup (before Python 3.13) raises the error and forgets the cancellation, and an owner that tries again after
    such errors never ends.
    """
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    try:
        async with _Scope() as group:
            yield group
            # Within the block: a TaskGroup takes back the cancellation by which it ends the block, not one of its own exit.
            await group.until_empty()
    except BaseExceptionGroup as errors:
        if task is not None and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError from errors
        first, *others = _leaves(errors)
        for other in others:
            first.add_note(f"at the same time: {type(other).__name__}: {other}")
        raise first from None


def _leaves(errors: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in errors.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
