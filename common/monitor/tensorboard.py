"""Metrics as TensorBoard event files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import StorageFailed
from common.monitor.sink import SINKS

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

_NAME = re.compile(r"[^A-Za-z0-9._-]")


class TensorBoardSink:
    """Writes event files, one folder a source, so that TensorBoard draws the sources over each other.

    Written in the caller's thread: `tensorboardX.SummaryWriter` hands records to a thread that dies of a full disk,
    after which its caller blocks for ever. The first failed write raises StorageFailed and ends the sink.
    """

    def __init__(self, folder: Path) -> None:
        # Imported here: tensorboardX imports torch, which a process without this sink may not need.
        from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415 - see above
        from tensorboardX.proto import event_pb2, summary_pb2  # noqa: PLC0415 - see above

        self._folder = folder
        self._new_writer = EventsWriter
        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        self._writers: dict[str, EventsWriter] = {}
        self._failed = False

    def log(self, step: int, time: float, source: str, values: Mapping[str, float]) -> None:
        """See `MetricSink`. Raises StorageFailed once when the disk is full or broken."""
        if self._failed or not values:
            return
        try:
            writer = self._writer(source)
            points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            writer.write_event(self._event(step=step, wall_time=time, summary=self._summary(value=points)))
            writer.flush()
        except OSError as error:
            self._failed = True
            raise StorageFailed(f"TensorBoard folder {self._folder}: {error.strerror}", path=self._folder) from error

    def close(self) -> None:
        """See `MetricSink`. May be called again. Raises StorageFailed where `log` has not done so already."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            try:
                writer.close()
            except OSError as error:
                if self._failed:
                    continue  # closing tries once more to write what `log` has reported
                self._failed = True
                raise StorageFailed(f"TensorBoard folder {self._folder}: {error.strerror}") from error

    def _writer(self, source: str) -> Any:
        name = _NAME.sub("_", source).lstrip(".") or "_"
        if name not in self._writers:
            folder = self._folder / name
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[name] = self._new_writer(str(folder / "events"))
        return self._writers[name]


@SINKS.register("tensorboard")
def _make(folder: Path, service: str) -> TensorBoardSink:
    return TensorBoardSink(folder / "tensorboard" / service)
