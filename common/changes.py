"""Waiting for a condition without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes those that wait for a predicate whenever something has changed. For one event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Something has changed: every waiter looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Returns as soon as the predicate holds. Bound the wait with `StatusBoard.waiting`."""
        while not predicate():
            await self._changed.wait()
