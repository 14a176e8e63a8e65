"""The spool behind one thread of its own, so that a slow disk never holds up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from explorer_service.spool import Spool

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class SpoolThread:
    """Runs the spool's calls one after the other. Its counters may be read at any time: they change at a commit."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._spool: Spool | None = None

    async def open(self, path: Path, run_name: str, explorer_id: str) -> None:
        """Opens the file; see `Spool.open`."""
        self._spool = await self.call(Spool.open, path, run_name, explorer_id)

    @property
    def counters(self) -> Spool:
        """For its properties alone."""
        if self._spool is None:
            raise RuntimeError("the spool is not open")
        return self._spool

    async def call(
        self, method: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Runs a method of the spool in its thread."""
        return await asyncio.wrap_future(self._thread.submit(method, *args, **kwargs))

    async def close(self) -> None:
        """Finishes the call in progress, and closes the file."""
        if self._spool is not None:
            await self.call(self._spool.close)
        self._thread.shutdown(wait=True)
