"""What a service does and waits for, as `GetStatus` shows it. Every wait has a name and a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from common.errors import WaitTimedOut

log = structlog.get_logger(__name__)
State = TypeVar("State", bound=int)

SLOW_WAIT_SECONDS = 10.0
"""A wait that lasts longer is logged."""


@dataclass(slots=True, eq=False)
class Wait:
    """One wait in progress."""

    waiting_for: str
    since: float
    """Seconds since the Unix epoch."""
    deadline: float | None
    """Seconds since the Unix epoch; None = as long as the run lasts."""


class StatusBoard(Generic[State]):
    """The state of a service, and its waits."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.state_since = time.time()
        self.reason = ""
        self.failure = ""
        self._waits: list[Wait] = []

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits in progress, oldest first."""
        return tuple(self._waits)

    def enter(self, state: State, reason: str = "") -> None:
        """The service does something else now."""
        if (state, reason) == (self.state, self.reason):
            return
        if state != self.state:
            self.state_since = time.time()
        self.state = state
        self.reason = reason

    @asynccontextmanager
    async def waiting(self, waiting_for: str, timeout: float | None) -> AsyncIterator[None]:
        """Registers a wait for as long as the block runs.

        `timeout` is in seconds; None is for waits that the run's end cancels. Raises WaitTimedOut, saying for what.
        """
        now = time.time()
        wait = Wait(waiting_for, now, None if timeout is None else now + timeout)
        self._waits.append(wait)
        slow = asyncio.get_running_loop().call_later(
            SLOW_WAIT_SECONDS, lambda: log.info("slow_wait", waiting_for=waiting_for, timeout=timeout)
        )
        try:
            async with asyncio.timeout(timeout) as scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise WaitTimedOut(f"waited {timeout:g} seconds for {waiting_for}") from error
        finally:
            slow.cancel()
            self._waits.remove(wait)
