"""Runs blocking functions of the user's beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from common.errors import WorkflowFailed

Value = TypeVar("Value")


class CallThreads:
    """At most `limit` calls at once, each in a daemon thread.

    A call that nobody waits for any more (its rollout timed out) keeps its place until it returns: hung calls use up the
    places, never the process. The threads are daemons, so that a hung one does not hold up the exit either, which an
    executor's would.
    """

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)

    async def call(self, function: Callable[[], Value]) -> Value:
        """What the function returns. Raises WorkflowFailed, from its cause, when it raises anything at all."""
        loop = asyncio.get_running_loop()
        await self._places.acquire()
        outcome: asyncio.Future[Value] = loop.create_future()

        def settle(value: Value | None, error: BaseException | None) -> None:
            self._places.release()
            if outcome.done():
                return
            if error is not None:
                # Wrapped: a future takes no StopIteration, and a SystemExit in it would end the loop.
                failure = WorkflowFailed(f"{type(error).__name__}: {error}")
                failure.__cause__ = error
                outcome.set_exception(failure)
            else:
                outcome.set_result(value)  # type: ignore[arg-type] # there is a value where there is no error

        def work() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as caught:  # noqa: BLE001 - handed to the caller, whatever it is
                error = caught
            # The loop is closed when the process ends while the call hangs; then nobody waits for it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, value, error)

        try:
            threading.Thread(target=work, name="reward", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise WorkflowFailed(f"no thread for it: {error}") from error
        return await outcome
