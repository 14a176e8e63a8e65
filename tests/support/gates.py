"""Holding a model's forward passes, so that a test decides what happens between two of them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

SECONDS = 30.0
"""No wait of a test lasts longer."""


class Gate:
    """Stops a model right before its `at`-th forward pass from now, until `open`."""

    def __init__(self, model: Any, at: int) -> None:
        self._at = at
        self._passes = 0
        self._reached = threading.Event()
        self._opened = threading.Event()
        self._hook = model.register_forward_pre_hook(self._before)

    def _before(self, *_: Any) -> None:
        self._passes += 1
        if self._passes == self._at:
            self._reached.set()
            if not self._opened.wait(SECONDS):
                raise TimeoutError("the test never opened the gate")

    async def reached(self) -> None:
        """Waits until the model stands before that pass."""
        if not await asyncio.to_thread(self._reached.wait, SECONDS):
            raise TimeoutError("the model never came to that pass")

    def open(self) -> None:
        """Lets it go on."""
        self._hook.remove()
        self._opened.set()


async def eventually(condition: Callable[[], object]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0.001)
