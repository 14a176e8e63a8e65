"""An event loop whose clock stands still while anything happens: waiting costs no time, and polling shows."""

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """`time()` moves only when nothing is ready, no executor works, and no socket speaks for `patience` real seconds.

    Then it jumps to the next timer. So what happens in one go happens at one time, however busy the machine is; what
    sleeps, even briefly, has moved the clock.
    """

    def __init__(self, patience: float) -> None:
        self.now = 0.0
        self.jumps: list[float] = []
        """Where the clock jumped to."""
        super().__init__(_PatientSelector(self, patience))

    def time(self) -> float:
        return self.now


class _PatientSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualClockLoop, patience: float) -> None:
        super().__init__()
        self._loop = loop
        self._patience = patience

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        while True:
            ready = super().select(self._patience)
            if ready:
                return ready
            if timeout is not None and not _Working.calls:
                self._loop.now += timeout
                self._loop.jumps.append(self._loop.now)
                return []


class _Working:
    """Calls that threads of executors are busy with."""

    calls: ClassVar[set[concurrent.futures.Future[Any]]] = set()


def run_virtually(
    main: Callable[[VirtualClockLoop], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """Runs it to its end in a loop of its own."""
    submit = concurrent.futures.ThreadPoolExecutor.submit

    def counted(self: Any, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future = submit(self, *args, **kwargs)
        _Working.calls.add(future)
        future.add_done_callback(_Working.calls.discard)
        return future

    monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", counted)
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(patience)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualClockLoop)
        runner.run(main(loop))
