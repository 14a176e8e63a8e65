"""The protocol of metric sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class MetricSink(Protocol):
    """Keeps metrics somewhere. Called from one thread; never raises for a single bad value."""

    def log(self, step: int, time: float, source: str, values: Mapping[str, float]) -> None:
        """One record: trainer step, seconds since the Unix epoch, "trainer" or an explorer's name, numbers by name."""

    def close(self) -> None:
        """Flushes and closes."""
