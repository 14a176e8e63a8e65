"""StreamExperiences on the explorer's side: what is spooled goes out, credits and acknowledgements come in.

The spool is the truth; a stream is a cursor over it. So a stream that breaks loses nothing: the next one opens with what
the trainer holds, and goes on there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from common.changes import Changes
from common.config.root import TandemConfig
from common.errors import PermissionDenied, ProtocolViolation, RunMismatch, StaleEpoch, TandemError
from common.rpc.peers import plain
from common.status import StatusBoard
from common.sync.actions import ReportWaiting
from common.sync.events import CreditGranted, CreditRevoked, ExplorerEvent, TasksEnded, WindowRepeated
from common.wire.bulk import wrap_batch
from explorer_service.spool_thread import SpoolThread
from explorer_service.task_share import TaskShare
from protos.tandem.v1 import experience_pb2, explorer_pb2

log = structlog.get_logger(__name__)

Requests = AsyncIterator[explorer_pb2.StreamExperiencesRequest]
Outgoing = explorer_pb2.StreamExperiencesResponse | bytes

BATCHES_AT_ONCE = 4
"""Read from the spool in one go."""
METRICS_KEPT = 64
"""Newest metrics that wait for a trainer; older ones are only in the explorer's own log."""
OPEN_SECONDS = 10.0
"""For a stream's first message."""
PEEK_SECONDS = 60.0
"""For the rest of what somebody who only looks has to say: a person may type it."""


class _Session:
    """One open stream."""

    def __init__(self, run_epoch: int, cursor: int) -> None:
        self.run_epoch = run_epoch
        self.cursor = cursor
        """Sequence number of the last batch that was sent."""
        self.displaced = False
        self.finished_sent: explorer_pb2.Finished | None = None
        self.waiting: deque[explorer_pb2.Waiting] = deque()
        """What is to be said of a boundary, behind every batch."""
        self.oldest_told: int | None = None
        """What was said last of the oldest version in flight; nothing at first, which says None."""
        self.asked: set[int] = set()
        """Failed tasks in whose place another was asked for."""
        self.reading = True
        self.failure: Exception | None = None
        """What ended the reading."""


@dataclass(frozen=True, slots=True)
class Words:
    """Where the stream gets what it says of the explorer."""

    hello: Callable[[], Awaitable[explorer_pb2.Hello]]
    """Who and where it is."""
    stands: Callable[[], ReportWaiting | None]
    """What it waits for at a boundary of style `fixed`, if it does."""
    oldest_in_flight: Callable[[], int | None]
    """Step of the oldest version that a group in flight was begun on; None: do not wait for it."""


class ExperienceStream:
    """Serves the trainer's stream, one at a time."""

    def __init__(
        self,
        config: TandemConfig,
        spool: SpoolThread,
        status: StatusBoard[int],
        changes: Changes,
        share: TaskShare,
        feed: Callable[[ExplorerEvent], None],
        words: Words,
    ) -> None:
        """`feed` takes events to the sync machine."""
        self._config = config
        self._spool = spool
        self._status = status
        self._changes = changes
        self._share = share
        self._feed = feed
        self._words = words
        self._session: _Session | None = None
        self._metrics: deque[explorer_pb2.ExplorerMetrics] = deque(maxlen=METRICS_KEPT)
        self._finished: explorer_pb2.Finished | None = None
        self._ended: TandemError | None = None

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

    def report_waiting(self, report: ReportWaiting, returned: Sequence[int]) -> None:
        """Says that the explorer stands at its boundary, after everything that is spooled."""
        if self._session is not None:
            self._session.waiting.append(
                explorer_pb2.Waiting(
                    policy_version=experience_pb2.PolicyVersion(run_epoch=report.epoch, step=report.step),
                    groups_started=report.started,
                    returned_tasks=returned,
                )
            )
            self._changes.notify()

    def end(self, why: TandemError) -> None:
        """The explorer ends: the open stream ends with this error, and so does any that is opened from here on."""
        if self._ended is None:
            self._ended = why
        self._changes.notify()

    async def serve(self, requests: Requests, *, looks_only: bool = False) -> AsyncGenerator[Outgoing, None]:
        """One call of StreamExperiences. Raises StaleEpoch when another trainer has taken, or takes, its place.

        Who `looks_only` may open it with `peek` alone, else PermissionDenied is raised.
        """
        async with self._status.waiting("the first message of a stream", OPEN_SECONDS):
            first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "open":
            raise ProtocolViolation("a stream of experiences starts with `open`")
        if first.open.peek:
            async with aclosing(self._peek(first.open, requests)) as peeked:
                async for response in peeked:
                    yield response
            return
        if looks_only:
            raise PermissionDenied("an operator may only look: open the stream with `peek`")
        session = await self._open(first.open)
        # No group of tasks around a `yield`: its cancellation would hit whoever runs this generator (PEP 789).
        reader = asyncio.create_task(self._read(requests, session))
        try:
            yield explorer_pb2.StreamExperiencesResponse(hello=await self._words.hello())
            report = self._words.stands()
            if report is not None:
                self.report_waiting(report, ())
            async with aclosing(self._send(session)) as outgoing:
                async for response in outgoing:
                    yield response
        finally:
            self._close(session)
            reader.cancel()
            await asyncio.wait([reader])

    async def _open(self, opening: explorer_pb2.StreamOpen) -> _Session:
        if self._ended is not None:
            raise self._ended
        self._check_run(opening.run_name)
        if opening.run_epoch == 0:
            raise ProtocolViolation("run epochs start at 1")
        spool = self._spool.counters
        held = max(opening.received_through, opening.acked_through)
        if held > spool.last_sequence:
            raise RunMismatch(
                f"the trainer holds batch {held}, this spool ends at {spool.last_sequence}: it is not "
                "the spool that it knows"
            )
        # What is committed stays, so everything else was checked before.
        await self._spool.call(spool.observe_epoch, opening.run_epoch)
        await self._spool.call(spool.acknowledge, opening.acked_through)
        if opening.run_epoch < spool.run_epoch:
            raise StaleEpoch(f"run epoch {opening.run_epoch}, but {spool.run_epoch} came meanwhile")
        session = _Session(opening.run_epoch, max(opening.received_through, spool.acknowledged))
        if self._session is not None:
            # The same trainer after a cut, or its successor: the epoch was checked above.
            self._session.displaced = True
            self._close(self._session)
        self._session = session
        log.info("trainer_connected", epoch=opening.run_epoch, replay_from=session.cursor + 1)
        self._changes.notify()
        return session

    def _check_run(self, name: str) -> None:
        if name != self._config.run.name:
            raise RunMismatch(f"this explorer belongs to run {self._config.run.name!r}, not {plain(name)!r}")

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
                await self._take(request, session)
        except Exception as error:  # noqa: BLE001 - the stream ends with it, see `_send`
            session.failure = error
        finally:
            session.reading = False
            self._changes.notify()

    async def _take(self, request: explorer_pb2.StreamExperiencesRequest, session: _Session) -> None:
        match request.WhichOneof("message"):
            case "credit":
                self._share.give(request.credit.tasks)
                self._finished = None
                self._feed(CreditGranted(len(request.credit.tasks), request.credit.min_policy_step))
            case "repeat_window":
                self._feed(WindowRepeated(request.repeat_window.policy_step))
            case "tasks_ended":
                self._feed(TasksEnded())
            case "replacement_task":
                answer = request.replacement_task
                self._share.replace(answer.failed, answer.task if answer.HasField("task") else None)
            case "ack":
                await self._spool.call(self._spool.counters.acknowledge, request.ack.through_sequence)
                self._changes.notify()
            case "resend":
                self._go_back(session, request.resend)
            case other:
                raise ProtocolViolation(f"unexpected {other} in a stream of experiences")

    def _go_back(self, session: _Session, resend: explorer_pb2.Resend) -> None:
        first, gone = resend.from_sequence, self._spool.counters.acknowledged
        if not gone < first <= session.cursor:
            raise ProtocolViolation(
                f"a resend from batch {first}; {gone + 1} to {session.cursor} were sent and not acknowledged"
            )
        log.warning("resending", first=first, reason=plain(resend.reason))
        session.cursor = first - 1
        self._changes.notify()

    async def _send(self, session: _Session) -> AsyncGenerator[Outgoing, None]:
        spool = self._spool.counters
        while True:
            await self._changes.until(lambda: self._has_something(session))
            self._check_goes_on(session)
            if session.cursor < spool.last_sequence:
                before = session.cursor
                for sequence, data in await self._spool.call(spool.read_after, before, BATCHES_AT_ONCE):
                    if session.displaced or session.cursor != before:
                        break  # a resend goes back behind what was read
                    before = session.cursor = sequence
                    yield wrap_batch(data)
            elif (word := self._next_word(session)) is not None:
                yield word
            if not session.reading and session.failure is None:
                return

    def _next_word(self, session: _Session) -> explorer_pb2.StreamExperiencesResponse | None:
        """What is to be said behind the batches: how things stand first, that nothing more comes last."""
        oldest = self._words.oldest_in_flight()
        if oldest != session.oldest_told:
            session.oldest_told = oldest
            return explorer_pb2.StreamExperiencesResponse(in_flight=explorer_pb2.InFlight(oldest_policy_step=oldest))
        if self._metrics:
            return explorer_pb2.StreamExperiencesResponse(metrics=self._metrics.popleft())
        if session.waiting:
            return explorer_pb2.StreamExperiencesResponse(waiting=session.waiting.popleft())
        if unasked := self._unasked(session):
            session.asked.add(unasked[0])
            return explorer_pb2.StreamExperiencesResponse(task_failed=explorer_pb2.TaskFailed(task=unasked[0]))
        if self._finished is not None and session.finished_sent is not self._finished:
            session.finished_sent = self._finished
            return explorer_pb2.StreamExperiencesResponse(finished=self._finished)
        return None

    def _check_goes_on(self, session: _Session) -> None:
        if session.displaced:
            raise StaleEpoch("another stream of the trainer took this one's place")
        error = self._ended or session.failure
        if error is not None:
            raise error

    def _has_something(self, session: _Session) -> bool:
        return (
            session.displaced
            or self._ended is not None
            or session.failure is not None
            or not session.reading
            or session.cursor < self._spool.counters.last_sequence
            or self._words.oldest_in_flight() != session.oldest_told
            or bool(self._metrics)
            or bool(session.waiting)
            or bool(self._unasked(session))
            or (self._finished is not None and session.finished_sent is not self._finished)
        )

    def _unasked(self, session: _Session) -> list[int]:
        return [task for task in self._share.failed if task not in session.asked]

    async def _peek(self, opening: explorer_pb2.StreamOpen, requests: Requests) -> AsyncGenerator[Outgoing, None]:
        """Hello, and the oldest spooled batches: whole ones, until they hold the groups of the credit. Changes nothing."""
        if opening.run_name:
            self._check_run(opening.run_name)
        yield explorer_pb2.StreamExperiencesResponse(hello=await self._words.hello())
        wanted = 0
        async with self._status.waiting("the end of a peek's requests", PEEK_SECONDS):
            async for request in requests:
                if request.WhichOneof("message") != "credit":
                    raise ProtocolViolation("a peek takes credit and nothing else")
                wanted = max(wanted, request.credit.group_limit)
        spool = self._spool.counters
        cursor = spool.acknowledged
        while wanted > 0:
            batches = await self._spool.call(spool.read_after, cursor, 1)
            if not batches:
                return
            cursor, data = batches[0]
            yield wrap_batch(data)
            wanted -= len(experience_pb2.ExperienceBatch.FromString(data).groups)
