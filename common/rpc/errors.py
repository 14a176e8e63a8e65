"""Our errors on the wire: a status code and a `google.rpc.ErrorInfo`, there and back."""

from __future__ import annotations

import inspect

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from common import errors
from common.errors import PeerFailed, PeerUnavailable, ProtocolViolation, TandemError, WaitTimedOut

DOMAIN = "tandem.v1"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_CHARACTERS = 1024
"""gRPC drops metadata above 8 KB without a word; status and details each carry the message."""

BY_REASON: dict[str, type[TandemError]] = {
    kind.reason: kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TandemError)
}
UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def shortened(message: str) -> str:
    """The message, cut to what fits into a status."""
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else message[: MAX_MESSAGE_CHARACTERS - 1] + "…"


def status_details(error: TandemError) -> tuple[tuple[str, bytes]]:
    """The trailing metadata that carries the error's rich details."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for name, value in list(error.metadata.items())[:16]:
        info.metadata[name] = value[:256]
    packed = AnyMessage()
    packed.Pack(info)
    status = status_pb2.Status(code=error.code.value[0], message=shortened(error.message), details=[packed])
    return ((DETAILS_KEY, status.SerializeToString()),)


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> TandemError:
    """The error that the peer raised, as one of ours; by its reason, else by its status code."""
    info = _error_info(error)
    message = f"{peer}: {error.details() or error.code().name}"
    if info is not None and info.domain == DOMAIN and info.reason in BY_REASON:
        return BY_REASON[info.reason](message, **dict(info.metadata))
    code = error.code()
    if code in UNREACHABLE:
        return PeerUnavailable(message)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return WaitTimedOut(message)
    if code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}:
        return ProtocolViolation(message)
    return PeerFailed(f"{message} ({code.name})")


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        status = status_pb2.Status.FromString(value)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return info
    return None
