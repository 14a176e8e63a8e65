"""Metrics as JSON lines: one record a line, readable while the run goes on, appended to after a restart."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from common.errors import MalformedData, StorageFailed
from common.monitor.sink import SINKS, MetricRecord

_HEAD = ("step", "time", "source")
_log = structlog.get_logger(__name__)


class JsonlSink:
    """Appends `{"step", "time", "source", NAME: number, ...}` lines to a file.

    A line is on its way to the disk when `log` returns. A write that fails leaves no torn line; the first one raises
    StorageFailed, later ones are tried quietly until one succeeds. Values that are not finite are written as null.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        self._torn = False
        self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._size = _whole_lines(self._file)
            os.ftruncate(self._file, self._size)
        except OSError as error:
            raise StorageFailed(f"metrics file {path}: {error.strerror}", path=path) from error

    def log(self, step: int, time: float, source: str, values: Mapping[str, float]) -> None:
        """See `MetricSink`. Raises StorageFailed once when the disk is full or broken."""
        record: dict[str, object] = {"step": step, "time": time, "source": source}
        for name, value in values.items():
            if name in _HEAD:
                continue
            finite = math.isfinite(value)
            if not finite and not self._warned:
                self._warned = True
                _log.warning("a metric is not finite; written as null from here on", metric=name, step=step)
            record[name] = float(value) if finite else None
        self._append((json.dumps(record, allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """See `MetricSink`. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, line: bytes) -> None:
        try:
            if self._torn:
                os.ftruncate(self._file, self._size)
                self._torn = False
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            self._torn = not self._cut()
            if not self._failed:
                self._failed = True
                raise StorageFailed(f"metrics file {self._path}: {error.strerror}", path=self._path) from error
            return
        self._size += len(line)
        self._failed = False

    def _cut(self) -> bool:
        """Takes a torn line back. False where the disk refuses that too: it is done before the next write."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            return False
        return True


def read_records(path: Path) -> list[MetricRecord]:
    """All records of a file, in order; a last line that a crash tore is left out.

    Raises MalformedData naming the line for anything else that is no record.
    """
    lines = path.read_bytes().split(b"\n")
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines[:-1], 1) if line]


def _parse(line: bytes, where: str) -> MetricRecord:
    try:
        record = json.loads(line)
        values = {
            name: math.nan if value is None else float(value) for name, value in record.items() if name not in _HEAD
        }
        return MetricRecord(int(record["step"]), float(record["time"]), str(record["source"]), values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedData(f"{where}: no metric record: {error}") from error


def _whole_lines(file: int) -> int:
    """Bytes up to the end of the last whole line."""
    end = os.fstat(file).st_size
    block = 1 << 16
    while end > 0:
        start = max(0, end - block)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


@SINKS.register("jsonl")
def _make(folder: Path, service: str) -> JsonlSink:
    return JsonlSink(folder / f"{service}.jsonl")
