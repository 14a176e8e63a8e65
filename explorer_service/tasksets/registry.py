"""Tasksets by name."""

from __future__ import annotations

from collections.abc import Callable

from common.registry import Registry
from explorer_service.tasksets.base import Taskset

TASKSETS: Registry[Callable[..., Taskset]] = Registry("taskset")
"""Called with the config's `taskset.options` as keyword arguments."""
