"""The trainer's connection to one explorer: experiences in, credits and acknowledgements out, weights delivered.

It reconnects with pauses until it is closed; each stream opens with what the trainer holds already, so nothing is lost
and nothing comes twice, whatever cut the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from common.config.hangs import find_hang
from common.config.root import TandemConfig
from common.config.security import Role
from common.errors import (
    CorruptData,
    ManifestMismatch,
    PeerFailed,
    PeerUnavailable,
    ProtocolViolation,
    RunMismatch,
    ShuttingDown,
    TandemError,
    Unauthenticated,
    WaitTimedOut,
)
from common.rpc.backoff import pauses
from common.rpc.channel import QUICK_CALL_SECONDS, open_channel
from common.rpc.credentials import Caller
from common.rpc.errors import from_rpc_error
from common.rpc.stubs import explorer_stub, read
from common.status import StatusBoard
from common.sync.events import (
    ExplorerFinished,
    ExplorerJoined,
    ExplorerLeft,
    ExplorerWaits,
    GroupsDropped,
    GroupsReceived,
    OldestInFlight,
    WeightsDelivered,
)
from common.sync.explorer_views import ExplorerView
from common.sync.policy import Style
from common.tasks import task_scope
from common.weights.version import PolicyVersion
from common.wire.bulk import BatchView, parse_stream_response
from common.wire.experiences import batch_from_view
from common.wire.revision import PROTOCOL_REVISION
from common.wire.versions import version_from_proto
from protos.tandem.v1 import explorer_pb2
from trainer_service.buffer.queue import TASK_DONE_BEFORE, GroupQueue
from trainer_service.publish.publication import Delivery, Publication, Publisher
from trainer_service.sync_driver import SyncDriver

log = structlog.get_logger(__name__)

Response = TypeVar("Response")
Call = grpc.aio.StreamStreamCall[Message, bytes]

STREAM_METHOD = "/tandem.v1.ExplorerService/StreamExperiences"
DECODED_INLINE_BYTES = 1 << 20
"""Batches up to here are decoded on the event loop, in a millisecond; for larger ones the way to a thread pays."""

_UNKNOWN = ExplorerView(connected=False)

WORTH_ANOTHER_TRY = (PeerUnavailable, WaitTimedOut, PeerFailed, ShuttingDown, Unauthenticated)
"""What a restart of the explorer, or of the network, can mend, or tokens that are being replaced. Anything else ends the run."""


class LinkObserver(Protocol):
    """Who wants to know what a link sees."""

    def explorer_metrics(self, explorer_id: str, values: dict[str, float]) -> None:
        """Metrics of an explorer arrived."""

    def joined(self, link: ExplorerLink) -> None:
        """Its stream is open."""

    def tasks_changed(self) -> None:
        """Tasks were dealt back, replaced, or arrived."""

    def delivered(self, explorer_id: str, publication: Publication, delivery: Delivery, seconds: float) -> None:
        """A version was applied (or superseded) there, so long after it was ordered."""


class ExplorerLink:
    """One explorer, at one address."""

    def __init__(
        self,
        address: str,
        config: TandemConfig,
        *,
        run_epoch: int,
        fingerprints: tuple[str, str],
        queue: GroupQueue,
        sync: SyncDriver,
        publisher: Publisher,
        status: StatusBoard[int],
        observer: LinkObserver,
    ) -> None:
        """`fingerprints` are the layout hash and the tokenizer hash that the explorer must have."""
        self.address = address
        self.explorer_id = address
        """Its name; the address until the first hello."""
        self.connected = False
        self.applied = PolicyVersion(0, 0)
        self.met = False
        """It answered the last opening with a hello, fit for this run or not."""
        self.last_error: TandemError | None = None
        self.peer_failure: PeerFailed | None = None
        """What it said that it failed with, until it is back."""
        self.unreachable_since = time.monotonic()
        self._config = config
        self._run_epoch = run_epoch
        self._fingerprints = fingerprints
        self._queue = queue
        self._sync = sync
        self._publisher = publisher
        self._status = status
        self._observer = observer
        self._channel = open_channel(address, config.limits, Caller(config.security, Role.TRAINER, Role.EXPLORER))
        self._stub = explorer_stub(self._channel)
        self._outbox: asyncio.Queue[explorer_pb2.StreamExperiencesRequest] = asyncio.Queue()
        self._wanted: Publication | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._in_delivery: set[asyncio.Task[None]] = set()
        self._transferring = False
        self._was_connected = False
        self._tasks_ended = False

    @property
    def view(self) -> ExplorerView:
        """How the schedule sees it."""
        return self._sync.state.explorers.get(self.explorer_id, _UNKNOWN)

    @property
    def credit_limit(self) -> int:
        """Groups with an ordinal below may be started."""
        return self.view.granted

    async def run(self) -> None:
        """Keeps the stream open until it is cancelled, or the explorer has finished and its stream has ended."""
        pause = pauses()
        while True:
            try:
                await self._stream()
            except WORTH_ANOTHER_TRY as error:
                if self.last_error is None or str(error) != str(self.last_error):
                    log.warning("explorer_unreachable", address=self.address, error=error.message)
                self.last_error = error
                if isinstance(error, PeerFailed):
                    self.peer_failure = error
            if self._was_connected:
                pause = pauses()
            seconds = next(pause)
            async with self._status.waiting(f"explorer {self.explorer_id} at {self.address}", None):
                await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    def grant(self, count: int, min_step: int) -> None:
        """Sends credit for so many groups more, each with its task."""
        tasks = self._queue.tasks.pool.lend(self.explorer_id, count)
        credit = explorer_pb2.Credit(group_limit=self.credit_limit, min_policy_step=min_step, tasks=tasks)
        self._outbox.put_nowait(explorer_pb2.StreamExperiencesRequest(credit=credit))

    def repeat_window(self, step: int) -> None:
        """Has it make another window on this version."""
        repeat = explorer_pb2.RepeatWindow(policy_step=step)
        self._outbox.put_nowait(explorer_pb2.StreamExperiencesRequest(repeat_window=repeat))

    def end_tasks(self) -> None:
        """Says once in each stream that no task is left."""
        if not self._tasks_ended:
            self._tasks_ended = True
            request = explorer_pb2.StreamExperiencesRequest(tasks_ended=explorer_pb2.TasksEnded())
            self._outbox.put_nowait(request)

    def acknowledge(self, through: int) -> None:
        """Says that everything up to this sequence number is trained and durable."""
        self._outbox.put_nowait(explorer_pb2.StreamExperiencesRequest(ack=explorer_pb2.Ack(through_sequence=through)))

    def deliver(self, publication: Publication) -> None:
        """Delivers the version as soon as the transfer before it is done; of several that wait, only the newest."""
        self._wanted = publication
        self._deliver_next()

    async def drain(self) -> None:
        """Lets the explorer finish what is in flight, and start nothing more."""
        call = self._stub.Drain(explorer_pb2.DrainRequest(), timeout=self._config.sync.timeout)
        await self._unary("finish what is in flight", call, self._config.sync.timeout)

    async def evaluate(self) -> explorer_pb2.EvaluateResponse:
        """Runs the explorer's eval taskset on the weights that are live there."""
        call = self._stub.Evaluate(explorer_pb2.EvaluateRequest(), timeout=self._config.sync.timeout)
        return await self._unary("evaluate", call, self._config.sync.timeout)

    async def stop(self, reason: str, *, finished: bool) -> None:
        """Asks the explorer to end."""
        request = explorer_pb2.ExplorerServiceStopRequest(reason=reason, finished=finished)
        await self._unary("end", self._stub.Stop(request, timeout=QUICK_CALL_SECONDS), QUICK_CALL_SECONDS)

    async def _unary(self, doing: str, call: Awaitable[Response], timeout: float) -> Response:
        try:
            async with self._status.waiting(f"explorer {self.explorer_id} to {doing}", timeout):
                return await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"explorer {self.explorer_id}") from error

    async def _stream(self) -> None:
        self._outbox = asyncio.Queue()
        self.met = self._was_connected = self._tasks_ended = False
        # Responses come as their wire bytes: gRPC turns an error of a deserializer into an end of the stream.
        call = self._channel.stream_stream(
            STREAM_METHOD,
            request_serializer=explorer_pb2.StreamExperiencesRequest.SerializeToString,
            response_deserializer=bytes,
        )()
        try:
            async with task_scope() as tasks:
                self._tasks = tasks
                try:
                    writer = tasks.create_task(self._write(call))
                    await self._read_all(call)
                    writer.cancel()
                    self._cancel_deliveries()
                finally:
                    # What is published from here on waits for the next stream: this one's tasks are ending.
                    self._tasks = None
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"explorer {self.explorer_id}") from error
        finally:
            call.cancel()
            if self.connected:
                self.connected = False
                self.unreachable_since = time.monotonic()
                self._sync.feed(ExplorerLeft(self.explorer_id))
                log.info("explorer_left", explorer=self.explorer_id)

    async def _write(self, call: Call) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):  # the call has ended; reading from it says why
            while True:
                request = await self._outbox.get()
                async with self._status.waiting(f"explorer {self.explorer_id} to read", self._config.sync.timeout):
                    await call.write(request)

    async def _read_all(self, call: Call) -> None:
        async with self._status.waiting(f"the hello of explorer {self.address}", QUICK_CALL_SECONDS):
            await call.write(explorer_pb2.StreamExperiencesRequest(open=self._opening()))
            first = await self._read(call)
        if not isinstance(first, explorer_pb2.StreamExperiencesResponse) or first.WhichOneof("message") != "hello":
            raise ProtocolViolation(f"explorer {self.address} did not open its stream with a hello")
        self.met = True
        self._greet(first.hello)
        while (response := await self._read(call)) is not None:
            if isinstance(response, BatchView):
                await self._take_in(response)
                continue
            match response.WhichOneof("message"):
                case "metrics":
                    self._observer.explorer_metrics(self.explorer_id, dict(response.metrics.values))
                case "finished":
                    log.info("explorer_finished", explorer=self.explorer_id, groups=response.finished.groups)
                    self._sync.feed(ExplorerFinished(self.explorer_id, response.finished.groups))
                case "waiting":
                    self._take_back(response.waiting)
                case "in_flight":
                    word = response.in_flight
                    oldest = word.oldest_policy_step if word.HasField("oldest_policy_step") else None
                    self._sync.feed(OldestInFlight(self.explorer_id, oldest))
                case "task_failed":
                    self._replace_task(response.task_failed.task)
                case other:
                    raise ProtocolViolation(f"explorer {self.explorer_id}: unexpected {other} in its stream")

    async def _read(self, call: Call) -> explorer_pb2.StreamExperiencesResponse | BatchView | None:
        data = await read(call)
        return parse_stream_response(data) if data is not None else None

    def _opening(self) -> explorer_pb2.StreamOpen:
        # Before the first hello the name is not known; the explorer then replays from the start, and what is there
        # already is recognised by its sequence numbers.
        account = self._queue.accounts.get(self.explorer_id)
        return explorer_pb2.StreamOpen(
            run_epoch=self._run_epoch,
            run_name=self._config.run.name,
            acked_through=account.durable_through if account is not None else 0,
            received_through=account.received_through if account is not None else 0,
        )

    def _greet(self, hello: explorer_pb2.Hello) -> None:
        """Checks who is there, and lets the schedule know. Raises what makes this explorer unfit for this run."""
        if hello.protocol_revision != PROTOCOL_REVISION:
            raise RunMismatch(
                f"explorer {hello.explorer_id} speaks revision {hello.protocol_revision}, we {PROTOCOL_REVISION}"
            )
        layout, tokenizer = self._fingerprints
        if hello.layout_hash != layout:
            raise ManifestMismatch(
                f"explorer {hello.explorer_id} has another model: its layout is {hello.layout_hash}, ours {layout}"
            )
        if hello.tokenizer_hash != tokenizer:
            raise RunMismatch(
                f"explorer {hello.explorer_id} has another tokenizer: {hello.tokenizer_hash}, ours {tokenizer}"
            )
        self._queue.tasks.meet(hello.explorer_id, hello.task_order_hash, hello.total_tasks)
        reproducible = self._sync.policy.reproducible
        others = sorted(self._queue.accounts.keys() - {hello.explorer_id})
        if reproducible and others:
            raise RunMismatch(
                f"explorer {hello.explorer_id} came to a deterministic run, which has one explorer: {others[0]}"
            )
        self._check_schedule(hello.explorer_id)
        account = self._queue.account(hello.explorer_id)
        if hello.last_sequence < account.received_through:
            raise RunMismatch(
                f"explorer {hello.explorer_id} has lost its spool: it stands at batch {hello.last_sequence}, "
                f"and we have received {account.received_through}"
            )
        lost = self._queue.skip_to(hello.explorer_id, hello.acknowledged_through, hello.acknowledged_groups)
        if lost and reproducible:
            raise RunMismatch(
                f"explorer {hello.explorer_id} has forgotten {lost} groups that were trained after the checkpoint from which this "
                "deterministic run goes on (`checkpoint.save_interval` sets how often there is one); run it again from its "
                "start under another name, or without `run.deterministic`"
            )
        if lost:
            log.warning(
                "experiences_lost_with_checkpoint",
                explorer=hello.explorer_id,
                groups=lost,
                reason="they were trained and acknowledged under a checkpoint that we did not go on from",
            )
        self.explorer_id = hello.explorer_id
        self._queue.tasks.rejoin(self.explorer_id, hello.tasks_held)
        self.connected = True
        self._was_connected = True
        self.last_error = self.peer_failure = None
        self.applied = version_from_proto(hello.policy_version)
        self._sync.links[self.explorer_id] = self
        known = self.applied.run_epoch == self._run_epoch or (reproducible and self.applied.run_epoch > 0)
        log.info("explorer_joined", explorer=self.explorer_id, address=self.address, incarnation=hello.incarnation)
        self._sync.feed(
            ExplorerJoined(
                self.explorer_id,
                applied=self.applied.step if known else None,
                started=hello.groups_started,
                received=account.received_groups,
                gone=account.gone_groups,
            )
        )
        self._observer.joined(self)
        self._observer.tasks_changed()

    def _check_schedule(self, explorer_id: str) -> None:
        """Raises RunMismatch for one explorer too many: under fixed, what they made too much would fill the buffer, and stop all."""
        policy = self._sync.policy
        taking_part = {name for name, view in self._sync.state.explorers.items() if view.takes_part} | {explorer_id}
        window = policy.explorer_interval * policy.groups_per_explore_step * len(taking_part)
        if policy.style is not Style.FIXED or window <= policy.trainer_interval * policy.groups_per_train_step:
            return
        hang = find_hang(policy, len(taking_part), self._config.trainer.total_steps)
        if hang is not None:
            raise RunMismatch(
                f"with explorer {explorer_id} the run would stop at trainer step {hang.trainer_steps}: {hang.reason}"
            )

    async def _take_in(self, view: BatchView) -> None:
        account = self._queue.account(self.explorer_id)
        try:
            if len(view.columns) <= DECODED_INLINE_BYTES:
                batch = batch_from_view(view, self._config.limits)
            else:
                batch = await asyncio.to_thread(batch_from_view, view, self._config.limits)
        except CorruptData as error:
            resend = explorer_pb2.Resend(from_sequence=account.received_through + 1, reason=error.message)
            log.warning("batch_corrupt", explorer=self.explorer_id, error=error.message)
            self._outbox.put_nowait(explorer_pb2.StreamExperiencesRequest(resend=resend))
            return
        if batch.explorer_id != self.explorer_id:
            raise ProtocolViolation(f"explorer {self.explorer_id} sent a batch of {batch.explorer_id}")
        if batch.sequence > account.received_through + 1:
            log.debug("batch_after_a_gap", explorer=self.explorer_id, sequence=batch.sequence)
            return
        intake = self._queue.take_in(batch)
        if intake.groups:
            self._sync.feed(GroupsReceived(self.explorer_id, intake.groups))
        if intake.already_gone:
            self._sync.feed(GroupsDropped(self.explorer_id, intake.already_gone))
        for group in intake.refused:
            log.warning("group_dropped", reason=TASK_DONE_BEFORE, explorer=self.explorer_id, ordinal=group.ordinal)
        self._observer.tasks_changed()

    def _take_back(self, waiting: explorer_pb2.Waiting) -> None:
        """It stands at its boundary; what it says of weights of another epoch is no longer so."""
        version = waiting.policy_version
        if version.run_epoch != self._run_epoch:
            return
        returned = list(waiting.returned_tasks)
        if len(returned) > self.view.open:
            raise ProtocolViolation(
                f"explorer {self.explorer_id} gives credit for {len(returned)} groups back, {self.view.open} are open"
            )
        self._queue.tasks.pool.take_back(self.explorer_id, returned)
        self._sync.feed(ExplorerWaits(self.explorer_id, version.step, waiting.groups_started, len(returned)))
        self._observer.tasks_changed()

    def _replace_task(self, failed: int) -> None:
        given = self._queue.tasks.pool.replace(self.explorer_id, failed)
        log.warning("task_failed", explorer=self.explorer_id, task=failed, replacement=given)
        answer = explorer_pb2.ReplacementTask(failed=failed, task=given)
        self._outbox.put_nowait(explorer_pb2.StreamExperiencesRequest(replacement_task=answer))
        self._observer.tasks_changed()

    def _deliver_next(self) -> None:
        if self._tasks is None or self._transferring or self._wanted is None:
            return
        publication, self._wanted = self._wanted, None
        self._transferring = True
        task = self._tasks.create_task(self._deliver(publication))
        self._in_delivery.add(task)
        task.add_done_callback(self._in_delivery.discard)

    def _cancel_deliveries(self) -> None:
        for task in self._in_delivery:
            task.cancel()

    async def _deliver(self, publication: Publication) -> None:
        began = False

        def staged() -> None:
            nonlocal began
            if not began:
                began = True
                self._transferring = False
                self._deliver_next()

        try:
            waiting_for = f"explorer {self.explorer_id} to apply version {publication.step}"
            async with self._status.waiting(waiting_for, None):
                # Others wait for the same publication: a delivery that is cancelled must not cancel it.
                published = await asyncio.shield(publication.ready)
                delivery = await self._publisher.deliver(
                    self._channel, f"explorer {self.explorer_id}", published, staged
                )
        finally:
            if not began:
                self._transferring = False
        if not began:
            self._deliver_next()
        if delivery.applied:
            self.applied = max(self.applied, delivery.version)
            seconds = asyncio.get_running_loop().time() - publication.ordered_at
            self._observer.delivered(self.explorer_id, publication, delivery, seconds)
            self._sync.feed(WeightsDelivered(self.explorer_id, publication.step))
