"""Workflows by name."""

from __future__ import annotations

from collections.abc import Callable

from common.registry import Registry
from explorer_service.workflows.base import Workflow

WORKFLOWS: Registry[Callable[..., Workflow]] = Registry("workflow")
"""Called with the scorer, and the config's `taskset.workflow_options` as keyword arguments."""
