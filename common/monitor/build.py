"""From `monitor.sinks` in the configuration to sinks."""

from __future__ import annotations

from pathlib import Path

from common.config.root import TandemConfig
from common.errors import StorageFailed
from common.monitor import jsonl, tensorboard
from common.monitor.sink import SINKS, MetricSink

BUILT_IN = (jsonl, tensorboard)
"""Modules that register their sinks when they are imported."""


def metrics_folder(config: TandemConfig) -> Path:
    """Where the metrics of the current stage lie: SERVICE.jsonl, tensorboard/SERVICE, ..."""
    return config.stage_folder / "metrics"


def build_sinks(config: TandemConfig, service: str) -> list[MetricSink]:
    """The configured sinks; `service` is "trainer" or the explorer's name.

    Raises ConfigError for an unknown sink and StorageFailed where the folder cannot be written.
    """
    factories = [SINKS.get(name) for name in config.monitor.sinks]
    folder = metrics_folder(config)
    if not factories:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(f"metrics folder {folder}: {error.strerror}", path=folder) from error
    sinks: list[MetricSink] = []
    try:
        for factory in factories:
            sinks.append(factory(folder, service))  # noqa: PERF401 - those made before a failure are closed below
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    return sinks
