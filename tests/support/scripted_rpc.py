"""A server of the real kind around methods that do what a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from common.config.root import LimitsConfig
from common.config.security import Role, SecurityConfig
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller, ServerSecurity
from common.rpc.server import RpcServer
from protos.tandem.v1 import explorer_pb2, explorer_pb2_grpc, trainer_pb2, trainer_pb2_grpc

SECONDS = 30.0
"""Far more than a call takes; the machine may be busy."""


class Scripted(explorer_pb2_grpc.ExplorerServiceServicer, trainer_pb2_grpc.TrainerServiceServicer):
    """One method of each kind: unary, server stream, bidirectional stream."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """What every method raises."""
        self.payload = ""
        """Text of every streamed metric's source."""
        self.begun = 0
        self.ended = 0
        """Streams whose `finally` ran."""

    async def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's name
        """Of the explorer and of the trainer; both tests only look at what the call ends with."""
        del request, context
        if self.error is not None:
            raise self.error
        return explorer_pb2.ExplorerServiceGetStatusResponse(explorer_id="scripted")

    async def WatchMetrics(self, request: Any, context: Any) -> AsyncIterator[trainer_pb2.WatchMetricsResponse]:  # noqa: N802 - the proto's name
        """One message; or, with a payload, messages for ever."""
        del request, context
        self.begun += 1
        try:
            yield trainer_pb2.WatchMetricsResponse(source=self.payload)
            if self.error is not None:
                raise self.error
            while self.payload:
                yield trainer_pb2.WatchMetricsResponse(source=self.payload)
        finally:
            self.ended += 1

    async def StreamExperiences(  # noqa: N802 - the proto's name
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[explorer_pb2.StreamExperiencesResponse]:
        """One message for each request, until there are no more."""
        del context
        self.begun += 1
        try:
            async for _ in request_iterator:
                if self.error is not None:
                    raise self.error
                yield explorer_pb2.StreamExperiencesResponse(hello=explorer_pb2.Hello())
        finally:
            self.ended += 1


@asynccontextmanager
async def scripted_server(
    security: SecurityConfig | None = None, *, side: Role = Role.EXPLORER, **limits: int
) -> AsyncIterator[tuple[Scripted, RpcServer, grpc.aio.Channel]]:
    """The methods, the server of one side that serves them, and a channel to it: the other side's."""
    settings = LimitsConfig(**limits)  # type: ignore[arg-type]
    scripted = Scripted()
    doors = ServerSecurity(security, side) if security is not None else None
    server = RpcServer("127.0.0.1:0", f"tandem.v1.{side.title()}Service", settings, doors)
    other = Role.TRAINER if side is Role.EXPLORER else Role.EXPLORER
    caller = Caller(security, other, side) if security is not None else None

    def add(target: grpc.aio.Server) -> None:
        explorer_pb2_grpc.add_ExplorerServiceServicer_to_server(scripted, target)
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(scripted, target)

    address = await server.start(add)
    try:
        async with open_channel(address, settings, caller) as channel:
            yield scripted, server, channel
    finally:
        await server.stop(0)


async def until(holds: Callable[[], bool]) -> None:
    """Returns when it holds."""
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.01)
