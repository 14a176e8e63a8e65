"""Stops the event loop of the process that loads it (`plugins`) for good, at the step that its environment names.

The process stays, and threads of gRPC's own go on to answer the pings of its connections.
"""

import importlib
import os
import time
from typing import Any

TRAINER, EXPLORER = "HANG_TRAINER_AT", "HANG_EXPLORER_AT"
"""Environment variables: a trainer step, an explore step."""


def _hang_at(step: int, module: str, owner: str, method: str) -> None:
    cls = getattr(importlib.import_module(module), owner)
    original = getattr(cls, method)
    calls = 0

    def hanging(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        while calls >= step:
            time.sleep(1)
        return original(*args, **kwargs)

    setattr(cls, method, hanging)


if TRAINER in os.environ:
    _hang_at(int(os.environ[TRAINER]), "trainer_service.trainer", "Trainer", "_log")
if EXPLORER in os.environ:
    _hang_at(int(os.environ[EXPLORER]), "explorer_service.explore_metrics", "ExploreMetrics", "end_step")
