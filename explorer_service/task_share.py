"""The tasks that the trainer has given to this explorer, and those that it still has to give."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from common.errors import LimitExceeded, ProtocolViolation

MAX_GIVEN = 1 << 20
"""Groups of unused credit: far beyond any schedule's, and some megabytes."""


class TaskShare:
    """Positions in the run's order of tasks that are this explorer's to do.

    One comes with the credit for each group. What is not begun when the stream breaks goes back with the credit; what is
    begun is kept, and named in the next hello.
    """

    def __init__(self, total: int | None = None) -> None:
        """`total` tasks there are in all; None: endless."""
        self._total = total
        self._given: deque[int] = deque()
        self._replacements: dict[int, asyncio.Future[int | None]] = {}

    def give(self, tasks: Iterable[int]) -> None:
        """Tasks that came with credit. Raises ProtocolViolation for ones that are none, and LimitExceeded for a flood."""
        for task in tasks:
            self._check(task)
            if len(self._given) >= MAX_GIVEN:
                raise LimitExceeded(f"credit for {MAX_GIVEN} groups is unused, and there comes more")
            self._given.append(task)

    def take(self) -> int:
        """The task of the next group: the one that has been here longest."""
        return self._given.popleft()

    def give_back(self, count: int) -> list[int]:
        """Removes the tasks of credit that is not used."""
        return [self._given.popleft() for _ in range(count)]

    def revoke(self) -> None:
        """The stream broke, and the credit with it."""
        self._given.clear()

    def ask_replacement(self, failed: int) -> asyncio.Future[int | None]:
        """Another task in place of one that failed, as soon as the trainer says; None when none is left."""
        return self._replacements.setdefault(failed, asyncio.get_running_loop().create_future())

    @property
    def failed(self) -> tuple[int, ...]:
        """Tasks for which the trainer has to give another one, in the order in which they failed."""
        return tuple(self._replacements)

    def replace(self, failed: int, task: int | None) -> None:
        """The trainer's answer. Raises ProtocolViolation when nobody asked, or for a task that is none."""
        if task is not None:
            self._check(task)
        replacement = self._replacements.pop(failed, None)
        if replacement is None:
            raise ProtocolViolation(f"a task in place of {failed}, which has not failed")
        if not replacement.done():
            replacement.set_result(task)

    def _check(self, task: int) -> None:
        if self._total is not None and task >= self._total:
            raise ProtocolViolation(f"task {task} of {self._total}: there is none")
