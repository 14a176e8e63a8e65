"""StreamExperiences on the explorer's side: what is spooled goes out, credits and acknowledgements come in.

The spool is the truth; a stream is a cursor over it. So a stream that breaks loses nothing: the next one opens with what
the trainer holds, and goes on there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable

import structlog

from common.changes import Changes
from common.config.root import TandemConfig
from common.errors import ProtocolViolation, RunMismatch, StaleEpoch
from common.status import StatusBoard
from common.sync.events import CreditGranted, CreditRevoked
from common.tasks import task_scope
from common.wire.bulk import wrap_batch
from explorer_service.spool_thread import SpoolThread
from protos.tandem.v1 import explorer_pb2

log = structlog.get_logger(__name__)

Requests = AsyncIterator[explorer_pb2.StreamExperiencesRequest]
Outgoing = explorer_pb2.StreamExperiencesResponse | bytes

BATCHES_AT_ONCE = 4
"""Read from the spool in one go."""
METRICS_KEPT = 64
"""Newest metrics that wait for a trainer; older ones are only in the explorer's own log."""
OPEN_SECONDS = 10.0
"""For a stream's first message."""


class _Session:
    """One open stream."""

    def __init__(self, run_epoch: int, cursor: int) -> None:
        self.run_epoch = run_epoch
        self.cursor = cursor
        """Sequence number of the last batch that was sent."""
        self.displaced = False
        self.finished_sent = False
        self.reading = True


class ExperienceStream:
    """Serves the trainer's stream, one at a time."""

    def __init__(
        self,
        config: TandemConfig,
        spool: SpoolThread,
        status: StatusBoard[int],
        changes: Changes,
        feed: Callable[[CreditGranted | CreditRevoked], None],
        hello: Callable[[], explorer_pb2.Hello],
    ) -> None:
        """`feed` takes events to the sync machine; `hello` says who and where the explorer is."""
        self._config = config
        self._spool = spool
        self._status = status
        self._changes = changes
        self._feed = feed
        self._hello = hello
        self._session: _Session | None = None
        self._metrics: deque[explorer_pb2.ExplorerMetrics] = deque(maxlen=METRICS_KEPT)
        self._finished: explorer_pb2.Finished | None = None

    @property
    def connected(self) -> bool:
        """Whether a trainer's stream is open."""
        return self._session is not None

    def send_metrics(self, metrics: explorer_pb2.ExplorerMetrics) -> None:
        """Sends them to the trainer, now or when there is one."""
        self._metrics.append(metrics)
        self._changes.notify()

    def finish(self, groups: int) -> None:
        """Says that nothing more comes, after everything that is spooled."""
        self._finished = explorer_pb2.Finished(last_sequence=self._spool.counters.last_sequence, groups=groups)
        self._changes.notify()

    async def serve(self, requests: Requests) -> AsyncIterator[Outgoing]:
        """One call of StreamExperiences. Raises StaleEpoch when another trainer has taken, or takes, its place."""
        async with self._status.waiting("the first message of a stream", OPEN_SECONDS):
            first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "open":
            raise ProtocolViolation("a stream of experiences starts with `open`")
        if first.open.peek:
            async for response in self._peek(requests):
                yield response
            return
        session = await self._open(first.open)
        try:
            yield explorer_pb2.StreamExperiencesResponse(hello=self._hello())
            async with task_scope() as tasks:
                reader = tasks.create_task(self._read(requests, session))
                async for response in self._send(session):
                    yield response
                reader.cancel()
        finally:
            self._close(session)

    async def _open(self, opening: explorer_pb2.StreamOpen) -> _Session:
        if opening.run_name != self._config.run.name:
            raise RunMismatch(f"this explorer belongs to run {self._config.run.name!r}, not {opening.run_name!r}")
        spool = self._spool.counters
        await self._spool.call(spool.observe_epoch, opening.run_epoch)
        await self._spool.call(spool.acknowledge, opening.acked_through)
        if opening.received_through > spool.last_sequence:
            raise RunMismatch(
                f"the trainer holds batch {opening.received_through}, this spool ends at {spool.last_sequence}: it is not "
                "the spool that it knows"
            )
        session = _Session(opening.run_epoch, max(opening.received_through, spool.acknowledged))
        if self._session is not None:
            # The same trainer after a cut, or its successor: the epoch was checked above.
            self._session.displaced = True
            self._close(self._session)
        self._session = session
        log.info("trainer_connected", epoch=opening.run_epoch, replay_from=session.cursor + 1)
        self._changes.notify()
        return session

    def _close(self, session: _Session) -> None:
        if self._session is session:
            self._session = None
            self._feed(CreditRevoked())
            log.info("trainer_disconnected", epoch=session.run_epoch)
        self._changes.notify()

    async def _read(self, requests: Requests, session: _Session) -> None:
        try:
            async for request in requests:
                if session.displaced:
                    return
                match request.WhichOneof("message"):
                    case "credit":
                        self._feed(CreditGranted(request.credit.group_limit, request.credit.min_policy_step))
                    case "ack":
                        await self._spool.call(self._spool.counters.acknowledge, request.ack.through_sequence)
                        self._changes.notify()
                    case "resend":
                        log.warning("resending", after=request.resend.from_sequence, reason=request.resend.reason)
                        session.cursor = max(request.resend.from_sequence - 1, self._spool.counters.acknowledged)
                        self._changes.notify()
                    case other:
                        raise ProtocolViolation(f"unexpected {other} in a stream of experiences")
        finally:
            session.reading = False
            self._changes.notify()

    async def _send(self, session: _Session) -> AsyncIterator[Outgoing]:
        spool = self._spool.counters
        while True:
            await self._changes.until(lambda: self._has_something(session))
            if session.displaced:
                raise StaleEpoch("another stream of the trainer took this one's place")
            if session.cursor < spool.last_sequence:
                for sequence, data in await self._spool.call(spool.read_after, session.cursor, BATCHES_AT_ONCE):
                    session.cursor = sequence
                    yield wrap_batch(data)
            elif self._metrics:
                yield explorer_pb2.StreamExperiencesResponse(metrics=self._metrics.popleft())
            elif self._finished is not None and not session.finished_sent:
                session.finished_sent = True
                yield explorer_pb2.StreamExperiencesResponse(finished=self._finished)
            if not session.reading:
                return

    def _has_something(self, session: _Session) -> bool:
        return (
            session.displaced
            or not session.reading
            or session.cursor < self._spool.counters.last_sequence
            or bool(self._metrics)
            or (self._finished is not None and not session.finished_sent)
        )

    async def _peek(self, requests: Requests) -> AsyncIterator[Outgoing]:
        """Hello, and the oldest spooled batches, as many groups as the credits allow; nothing is changed."""
        yield explorer_pb2.StreamExperiencesResponse(hello=self._hello())
        allowed = 0
        async for request in requests:
            if request.WhichOneof("message") == "credit":
                allowed = max(allowed, request.credit.group_limit)
        spool = self._spool.counters
        batches = await self._spool.call(spool.read_after, spool.acknowledged, min(allowed, BATCHES_AT_ONCE))
        for _, data in batches:
            yield wrap_batch(data)
