"""Whether the trainer that the schedule waits for still works: an open stream says only that its process is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from common.changes import Changes
from common.errors import PeerUnavailable, TandemError, WaitTimedOut

log = structlog.get_logger(__name__)

ASK_EVERY_SECONDS = 30.0
"""While the schedule waits: rarely enough to cost nothing, often within `explorer.peer_timeout`'s default."""


class TrainerWatch:
    """Asks the trainer for a sign of life for as long as the explorer waits for it.

    A trainer's connection is kept up by threads of gRPC's own, whatever its event loop does. One that hangs there would never
    grant, publish or end, and none of its own deadlines would pass.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[None]],
        reached: Callable[[], bool],
        changes: Changes,
        waiting_for: Callable[[], str],
        timeout: float,
        ask_every: float = ASK_EVERY_SECONDS,
    ) -> None:
        """`ask` raises a TandemError where no answer comes; `waiting_for` is empty while the explorer is busy.

        `reached`: whether the trainer has ever answered a call; one that has not may be out of this explorer's reach.
        """
        self._ask = ask
        self._reached = reached
        self._changes = changes
        self._waiting_for = waiting_for
        self._timeout = timeout
        self._pause = min(ask_every, timeout / 4)

    async def run(self) -> None:
        """Until it is cancelled. Raises PeerUnavailable when a trainer that answered before has hung for the timeout."""
        while True:
            await self._changes.until(lambda: bool(self._waiting_for()))
            sign = time.monotonic()
            while await self._still_waits():
                if await self._answers():
                    sign = time.monotonic()
                elif self._reached():
                    self._check(time.monotonic() - sign)

    async def _still_waits(self) -> bool:
        try:
            async with asyncio.timeout(self._pause):
                await self._changes.until(lambda: not self._waiting_for())
        except TimeoutError:
            return True
        return False

    async def _answers(self) -> bool:
        try:
            await self._ask()
        except WaitTimedOut:
            return False
        except TandemError as error:
            # Refused or out of reach is no hang; the end of its stream is watched elsewhere.
            log.debug("trainer_not_asked", error=error.message)
        return True

    def _check(self, silent: float) -> None:
        waiting_for = self._waiting_for() or "it"
        log.warning("trainer_does_not_answer", seconds=round(silent), waiting_for=waiting_for)
        if silent >= self._timeout:
            raise PeerUnavailable(
                f"the trainer is connected and has not answered for {silent:.0f} seconds, while this explorer waits for {waiting_for}"
            )
