"""Named parts: algorithms, workflows, rewards, tasksets, engines, sinks."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from common.errors import ConfigError

Part = TypeVar("Part")


class Registry(Generic[Part]):
    """Maps names to parts of one kind. A duplicate raises at once; an unknown name lists the known ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """Decorator that enters a part under a name."""

        def enter(part: Part) -> Part:
            if name in self._parts:
                raise ConfigError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = part
            return part

        return enter

    def get(self, name: str) -> Part:
        """The part of that name. Raises ConfigError with the known names."""
        if name in self._parts:
            return self._parts[name]
        near = difflib.get_close_matches(name, self._parts, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown {self.kind} {name!r}; known are {', '.join(sorted(self._parts))}.{hint}")

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._parts)


def load_plugins(modules: Iterable[str]) -> None:
    """Imports the user's modules, which register their parts. Raises ConfigError naming the module and the cause."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"plugins: cannot import {module!r}: {error}") from error
