"""The one thread that touches the train engine: what is submitted first is done first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class EngineWorker:
    """Runs engine calls off the event loop, in the order of submission.

    A publication that is submitted between two steps therefore exports the weights between them, whatever the event loop
    does meanwhile.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train-engine")

    def submit(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> asyncio.Future[Result]:
        """Enters the call at once, and returns its result to come."""
        return asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))

    def close(self) -> None:
        """Waits for the running call; drops those that wait."""
        self._thread.shutdown(wait=True, cancel_futures=True)
