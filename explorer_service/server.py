"""The ExplorerService servicer: decodes, calls, encodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from common import __version__
from common.config.root import TandemConfig
from common.config.security import Role
from common.errors import ConfigError, ShuttingDown
from common.monitor.monitor import Monitor
from common.rpc.authorization import calling_role
from common.rpc.peers import plain
from common.status import StatusBoard
from common.wire.bulk import parse_push_request, serialize_or_pass
from common.wire.status import timestamp_to_proto, wait_to_proto
from common.wire.versions import version_from_proto, version_to_proto
from explorer_service.evaluation import Evaluator
from explorer_service.experience_stream import OPEN_SECONDS, ExperienceStream, Outgoing, Requests
from explorer_service.explorer import Explorer
from explorer_service.spool_thread import SpoolThread
from explorer_service.weight_intake import Outcome, WeightIntake
from explorer_service.weight_push import PushMessage, PushReception, PushRequests, offer_of
from protos.tandem.v1 import experience_pb2, explorer_pb2, explorer_pb2_grpc, weights_pb2

STAGED_REPEAT_SECONDS = 5.0
"""How often a push whose swap waits says so, so that the trainer can tell a wait from a hang."""
SERVICE = "tandem.v1.ExplorerService"


class ExplorerServicer(explorer_pb2_grpc.ExplorerServiceServicer):
    """Answers the trainer, and people."""

    def __init__(
        self,
        *,
        config: TandemConfig,
        status: StatusBoard[int],
        monitor: Monitor,
        stop: Callable[[str, bool], None],
    ) -> None:
        """`stop` gets the reason, and whether the run is finished rather than failed."""
        self._config = config
        self._status = status
        self._monitor = monitor
        self._stop = stop
        self.parts: Parts | None = None
        """Set when the explorer is ready."""

    async def GetStatus(  # noqa: N802 - the proto's name
        self, request: explorer_pb2.ExplorerServiceGetStatusRequest, context: object
    ) -> explorer_pb2.ExplorerServiceGetStatusResponse:
        """What the explorer does, and what it waits for."""
        del request, context
        response = explorer_pb2.ExplorerServiceGetStatusResponse(
            explorer_id=self._config.explorer.id,
            run_name=self._config.run.name,
            stage=self._config.stage_name,
            state=self._status.state,  # type: ignore[arg-type]
            state_since=timestamp_to_proto(self._status.state_since),
            reason=self._status.reason,
            waits=[wait_to_proto(wait) for wait in self._status.waits],
            metrics=self._monitor.latest(self._config.explorer.id),
            software_version=__version__,
            failure=self._status.failure,
        )
        if self.parts is not None:
            self._add_progress(response, self.parts)
        return response

    async def StreamExperiences(  # type: ignore[override]  # noqa: N802 - the proto's name; also yields wire bytes
        self, request_iterator: Requests, context: object
    ) -> AsyncGenerator[Outgoing, None]:
        """Experiences out, credits and acknowledgements in."""
        del context
        looks_only = calling_role() is Role.OPERATOR
        async with aclosing(self._ready().stream.serve(request_iterator, looks_only=looks_only)) as responses:
            async for response in responses:
                yield response

    async def PushWeights(  # noqa: N802 - the proto's name
        self, request_iterator: PushRequests, context: object
    ) -> AsyncIterator[explorer_pb2.PushWeightsResponse]:
        """One version, chunk by chunk, until it is applied or superseded."""
        del context
        weights = self._ready().weights
        offer = offer_of(await self._next(request_iterator, "the first message of a push", OPEN_SECONDS))
        version = version_from_proto(offer.version)
        if await weights.admit(version):

            def following(what: str) -> Awaitable[PushMessage | None]:
                return self._next(request_iterator, what, self._config.sync.timeout)

            reception = PushReception(version, following, weights, self._config.limits)
            async with aclosing(reception.run(offer)) as responses:
                async for response in responses:
                    yield response
        async for response in self._until_settled(version.order, weights):
            yield response

    async def NotifyCheckpoint(  # noqa: N802 - the proto's name
        self, request: explorer_pb2.NotifyCheckpointRequest, context: object
    ) -> explorer_pb2.NotifyCheckpointResponse:
        """A version on shared storage; returns when it is applied or superseded."""
        del context
        weights = self._ready().weights
        version = version_from_proto(request.version)
        if await weights.admit(version):
            version = await weights.stage_from_disk(version, request.path)
        shown = f"version {version.step} of epoch {version.run_epoch} to be applied"
        async with self._status.waiting(shown, self._config.sync.timeout):
            outcome = await self._settled(version.order, weights, None)
        if outcome.applied:
            return explorer_pb2.NotifyCheckpointResponse(applied=_applied(outcome))
        return explorer_pb2.NotifyCheckpointResponse(superseded=_superseded(outcome))

    async def Evaluate(  # noqa: N802 - the proto's name
        self, request: explorer_pb2.EvaluateRequest, context: object
    ) -> explorer_pb2.EvaluateResponse:
        """Runs the eval taskset on the live weights."""
        del context
        parts = self._ready()
        values = await parts.evaluator.evaluate(request.max_tasks)
        if values is None:
            raise ConfigError("this explorer has no eval taskset (`explorer.evaluation.taskset`)")
        return explorer_pb2.EvaluateResponse(
            policy_version=experience_pb2.PolicyVersion(
                run_epoch=parts.weights.live.run_epoch, step=int(values["eval/policy_version"])
            ),
            tasks=int(values["eval/tasks"]),
            metrics=values,
        )

    async def Drain(  # noqa: N802 - the proto's name
        self, request: explorer_pb2.DrainRequest, context: object
    ) -> explorer_pb2.DrainResponse:
        """Starts nothing more; returns when everything in flight is spooled."""
        del request, context
        last = await self._ready().explorer.drain(self._config.sync.timeout)
        return explorer_pb2.DrainResponse(last_sequence=last)

    async def Stop(  # noqa: N802 - the proto's name
        self, request: explorer_pb2.ExplorerServiceStopRequest, context: object
    ) -> explorer_pb2.ExplorerServiceStopResponse:
        """Ends the explorer, after this response is sent."""
        del context
        asyncio.get_running_loop().call_soon(self._stop, plain(request.reason) or "asked to stop", request.finished)
        return explorer_pb2.ExplorerServiceStopResponse()

    def _ready(self) -> Parts:
        if self.parts is None:
            raise ShuttingDown("the explorer is starting")
        return self.parts

    async def _next(self, requests: PushRequests, waiting_for: str, timeout: float) -> PushMessage | None:
        async with self._status.waiting(waiting_for, timeout):
            return await anext(aiter(requests), None)

    async def _until_settled(
        self, order: tuple[int, int], weights: WeightIntake
    ) -> AsyncIterator[explorer_pb2.PushWeightsResponse]:
        while True:
            waiting_for = self._status.reason or "the next boundary"
            if weights.outcome_of(order) is None:
                yield explorer_pb2.PushWeightsResponse(staged=weights_pb2.WeightStaged(waiting_for=waiting_for))
            try:
                outcome = await self._settled(order, weights, STAGED_REPEAT_SECONDS)
            except TimeoutError:
                continue
            if outcome.applied:
                yield explorer_pb2.PushWeightsResponse(applied=_applied(outcome))
            else:
                yield explorer_pb2.PushWeightsResponse(superseded=_superseded(outcome))
            return

    async def _settled(self, order: tuple[int, int], weights: WeightIntake, timeout: float | None) -> Outcome:
        async with asyncio.timeout(timeout):
            await weights.changes.until(lambda: weights.outcome_of(order) is not None)
        outcome = weights.outcome_of(order)
        if outcome is None:
            raise RuntimeError("an outcome does not go away")
        return outcome

    def _add_progress(self, response: explorer_pb2.ExplorerServiceGetStatusResponse, parts: Parts) -> None:
        state = parts.explorer.state
        spool = parts.spool.counters
        response.policy_version.CopyFrom(version_to_proto(parts.weights.live))
        response.explore_step = state.explore_step
        response.groups_started = state.started
        response.groups_running = parts.explorer.groups_running
        response.batches_spooled = spool.pending_batches
        response.last_sequence = spool.last_sequence
        response.frontier = spool.acknowledged
        response.credit_limit = state.credit_limit


class Parts:
    """What the servicer calls."""

    def __init__(
        self,
        explorer: Explorer,
        weights: WeightIntake,
        stream: ExperienceStream,
        evaluator: Evaluator,
        spool: SpoolThread,
    ) -> None:
        self.explorer = explorer
        self.weights = weights
        self.stream = stream
        self.evaluator = evaluator
        self.spool = spool


def add_explorer_servicer(servicer: ExplorerServicer, server: grpc.aio.Server) -> None:
    """Registers the servicer; the two bulk methods with codecs of our own, which speak the same wire format."""
    bulk: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "StreamExperiences": grpc.stream_stream_rpc_method_handler(
            servicer.StreamExperiences,
            request_deserializer=explorer_pb2.StreamExperiencesRequest.FromString,
            response_serializer=serialize_or_pass,
        ),
        "PushWeights": grpc.stream_stream_rpc_method_handler(
            servicer.PushWeights,
            request_deserializer=parse_push_request,
            response_serializer=explorer_pb2.PushWeightsResponse.SerializeToString,
        ),
    }
    # Of generic handlers the first that knows a method gets it, of registered ones (newer releases of grpc) the last.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, bulk),))
    explorer_pb2_grpc.add_ExplorerServiceServicer_to_server(servicer, server)
    server.add_registered_method_handlers(SERVICE, bulk)


def _applied(outcome: Outcome) -> weights_pb2.WeightApplied:
    return weights_pb2.WeightApplied(
        version=version_to_proto(outcome.version),
        receive_seconds=outcome.receive_seconds,
        apply_seconds=outcome.apply_seconds,
    )


def _superseded(outcome: Outcome) -> weights_pb2.WeightSuperseded:
    return weights_pb2.WeightSuperseded(by=version_to_proto(outcome.version))
