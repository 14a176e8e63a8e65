"""The generated stubs, typed for `grpc.aio`, and reading a stream to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import grpc

from protos.tandem.v1 import explorer_pb2_grpc, trainer_pb2_grpc

if TYPE_CHECKING:
    from protos.tandem.v1.explorer_pb2_grpc import ExplorerServiceAsyncStub
    from protos.tandem.v1.trainer_pb2_grpc import TrainerServiceAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")


def explorer_stub(channel: grpc.aio.Channel) -> ExplorerServiceAsyncStub:
    """Calls of an explorer."""
    return cast("ExplorerServiceAsyncStub", explorer_pb2_grpc.ExplorerServiceStub(channel))


def trainer_stub(channel: grpc.aio.Channel) -> TrainerServiceAsyncStub:
    """Calls of a trainer."""
    return cast("TrainerServiceAsyncStub", trainer_pb2_grpc.TrainerServiceStub(channel))


async def read(call: grpc.aio.StreamStreamCall[Request, Response]) -> Response | None:
    """The stream's next message; None at its end. Raises AioRpcError when it ended with an error."""
    message = await call.read()
    return None if message is grpc.aio.EOF else cast("Response", message)
