"""The rollout engines by name, for `explorer.engine`."""

from __future__ import annotations

from collections.abc import Callable

from common.config.root import TandemConfig
from common.registry import Registry
from explorer_service.engine.base import RolloutEngine

ENGINES: Registry[Callable[[TandemConfig], RolloutEngine]] = Registry("rollout engine")
"""Factories; making an engine may block while it loads."""


@ENGINES.register("torch")
def _torch(config: TandemConfig) -> RolloutEngine:
    from explorer_service.engine.torch_engine import TorchRolloutEngine  # noqa: PLC0415 - transformers takes seconds

    return TorchRolloutEngine(config)


def make_engine(config: TandemConfig) -> RolloutEngine:
    """The engine that `explorer.engine` names. Raises ConfigError for an unknown name."""
    return ENGINES.get(config.explorer.engine)(config)
