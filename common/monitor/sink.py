"""The protocol of metric sinks, the record that they keep, and the registry that plugins add theirs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.registry import Registry


class MetricSink(Protocol):
    """Keeps metrics somewhere. Called from one thread; never raises for a single bad value."""

    def log(self, step: int, time: float, source: str, values: Mapping[str, float]) -> None:
        """One record: trainer step, seconds since the Unix epoch, "trainer" or an explorer's name, numbers by name."""

    def close(self) -> None:
        """Flushes and closes."""


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One record of the metrics log."""

    step: int
    """Trainer steps done."""
    time: float
    """Seconds since the Unix epoch."""
    source: str
    """The word "trainer", or an explorer's name."""
    values: Mapping[str, float]
    """Numbers by name; NaN where a metric was not finite."""


SinkFactory = Callable[[Path, str], MetricSink]
"""Makes a sink from a folder, which exists, and the name of the service that logs to it."""

SINKS: Registry[SinkFactory] = Registry("metric sink")
"""`@SINKS.register("name")`; chosen by `monitor.sinks`."""
