"""Kills the process that loads it (`plugins`) at a named point: `KILL_AT=module:function:count[:after]`.

The function is one of a module, or `Class.method`. The process kills itself with SIGKILL when it is called for the `count`th time, or
with `after` when that call has ended; a coroutine function's call ends when it has been awaited.
"""

import functools
import importlib
import inspect
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

VARIABLE = "KILL_AT"


@dataclass(frozen=True)
class KillPoint:
    """Where and when."""

    module: str
    function: str
    count: int = 1
    after: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.function}:{self.count}{':after' if self.after else ''}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the environment's text."""
        module, function, count, *after = text.split(":")
        return cls(module, function, int(count), bool(after))

    def install(self, die: Callable[[], None]) -> None:
        """Puts itself around the function."""
        owner: Any = importlib.import_module(self.module)
        *path, name = self.function.split(".")
        for part in path:
            owner = getattr(owner, part)
        original = inspect.getattr_static(owner, name)
        plain = original.__func__ if isinstance(original, staticmethod | classmethod) else original
        wrapped: Any = (
            self._around_async(plain, die) if inspect.iscoroutinefunction(plain) else self._around(plain, die)
        )
        if isinstance(original, staticmethod | classmethod):
            wrapped = type(original)(wrapped)
        setattr(owner, name, wrapped)

    def _around(self, function: Callable[..., Any], die: Callable[[], None]) -> Callable[..., Any]:
        calls = 0

        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            mine = calls
            if mine == self.count and not self.after:
                die()
            result = function(*args, **kwargs)
            if mine == self.count:
                die()
            return result

        return around

    def _around_async(self, function: Callable[..., Any], die: Callable[[], None]) -> Callable[..., Any]:
        calls = 0

        @functools.wraps(function)
        async def around(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            mine = calls
            if mine == self.count and not self.after:
                die()
            result = await function(*args, **kwargs)
            if mine == self.count:
                die()
            return result

        return around


def kill_this_process() -> None:
    """Nothing runs after it: no handler, no finally, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


if VARIABLE in os.environ:
    KillPoint.parse(os.environ[VARIABLE]).install(kill_this_process)
