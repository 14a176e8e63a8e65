"""One entrance for metrics: to all sinks, to whoever asks for the newest values, to whoever watches."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import structlog

from common.errors import StorageFailed
from common.monitor.sink import MetricRecord, MetricSink

DEFAULT_BACKLOG = 256
"""Records that wait for a slow watcher: minutes of a run, some 100 KB."""
_MAX_SOURCES = 1024
_MAX_NAMES = 1024
"""Newest values kept; names come from peers and workflows, so their number is bounded."""
_log = structlog.get_logger(__name__)


class Subscription:
    """The records logged since `Monitor.subscribe`: `async for record in subscription`.

    A watcher that is too slow loses the oldest records; `take_lost` tells how many. Ends when the monitor closes.
    """

    def __init__(self, backlog: int, forget: Callable[[Subscription], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._records: deque[MetricRecord] = deque()
        self._backlog = backlog
        self._forget = forget
        self._lost = 0
        self._closed = False
        self._lock = threading.Lock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MetricRecord:
        while True:
            with self._lock:
                if self._records:
                    return self._records.popleft()
                if self._closed:
                    raise StopAsyncIteration
                self._wake.clear()
            await self._wake.wait()  # the caller's deadline ends it, or the monitor's close

    def take_lost(self) -> int:
        """Records lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
            return lost

    def close(self) -> None:
        """Ends the iteration, after what is still in it."""
        self._forget(self)
        self.finish()

    def offer(self, record: MetricRecord) -> None:
        """Takes one more record, from any thread; never waits."""
        with self._lock:
            if self._closed:
                return
            if len(self._records) >= self._backlog:
                self._records.popleft()
                self._lost += 1
            self._records.append(record)
        self._notify()

    def finish(self) -> None:
        """No more records come."""
        with self._lock:
            self._closed = True
        self._notify()

    def _notify(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)


class Monitor:
    """Hands each record to all sinks and subscribers. A `MetricSink` itself; its methods may be called by any thread."""

    def __init__(self, sinks: Sequence[MetricSink] = ()) -> None:
        self._sinks = tuple(sinks)
        self._latest: dict[str, dict[str, float]] = {}
        self._subscriptions: set[Subscription] = set()
        self._lock = threading.Lock()
        self._overflowed = False
        self._closed = False

    def log(self, step: int, time: float, source: str, values: Mapping[str, float]) -> None:
        """See `MetricSink`. Every sink gets the record; then the first sink's StorageFailed is raised."""
        record = MetricRecord(step, time, source, dict(values))
        failure: StorageFailed | None = None
        with self._lock:
            if self._closed:
                return
            self._remember(record)
            for sink in self._sinks:
                try:
                    sink.log(step, time, source, record.values)
                except StorageFailed as error:
                    failure = failure or error
            for subscription in self._subscriptions:
                subscription.offer(record)
        if failure is not None:
            raise failure

    def latest(self, source: str) -> dict[str, float]:
        """The newest value of each metric of a source; empty for an unknown one."""
        with self._lock:
            return dict(self._latest.get(source, {}))

    def sources(self) -> list[str]:
        """Everyone who has logged, sorted."""
        with self._lock:
            return sorted(self._latest)

    def subscribe(self, backlog: int = DEFAULT_BACKLOG) -> Subscription:
        """The records from now on, at most `backlog` of them waiting. Call it on the event loop; close it at the end."""
        subscription = Subscription(backlog, self._forget)
        with self._lock:
            self._subscriptions.add(subscription)
            closed = self._closed
        if closed:
            subscription.finish()
        return subscription

    def close(self) -> None:
        """Closes sinks and subscriptions. May be called again; what is logged afterwards is not kept.

        Raises the first sink's StorageFailed when all are closed.
        """
        failure: StorageFailed | None = None
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for subscription in self._subscriptions:
                subscription.finish()
            for sink in self._sinks:
                try:
                    sink.close()
                except StorageFailed as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _forget(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def _remember(self, record: MetricRecord) -> None:
        kept = self._latest.get(record.source)
        if kept is None and len(self._latest) < _MAX_SOURCES:
            kept = self._latest[record.source] = {}
        if kept is not None:
            kept.update({name: value for name, value in record.values.items() if name in kept})
            new = [name for name in record.values if name not in kept]
            kept.update({name: record.values[name] for name in new[: _MAX_NAMES - len(kept)]})
        if (kept is None or len(kept) >= _MAX_NAMES) and not self._overflowed:
            self._overflowed = True
            _log.warning("too many metrics; the newest values of further ones are not kept", source=record.source)
