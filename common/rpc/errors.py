"""Our errors on the wire: a status code and a `google.rpc.ErrorInfo`, there and back."""

from __future__ import annotations

import inspect

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from common import errors
from common.errors import PeerFailed, PeerUnavailable, ProtocolViolation, TandemError, WaitTimedOut

DOMAIN = "tandem.v1"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_BYTES = 1500
"""As gRPC writes it. Above 8 KiB of metadata a peer may see another error instead of ours; status and details each carry
the message, and the details a third more for base64."""
MAX_METADATA_BYTES = 1500
"""Names and values of the details' metadata together."""
MAX_VALUE_BYTES = 256
CUT = "..."
PRINTABLE = range(0x20, 0x7F)

BY_REASON: dict[str, type[TandemError]] = {
    kind.reason: kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TandemError)
}
CUT_WHILE_WRITING = "Internal error from Core"
"""gRPC's own INTERNAL where a stream ended while we wrote to it; the status that the peer sent, if it did, is lost then."""
UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def shortened(message: str) -> str:
    """The message, cut to what fits into a status; what UTF-8 cannot spell (half a surrogate pair) is replaced."""
    return _cut(message, MAX_MESSAGE_BYTES)


def status_details(error: TandemError) -> tuple[tuple[str, bytes]]:
    """The trailing metadata that carries the error's rich details."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    room = MAX_METADATA_BYTES
    for name, value in error.metadata.items():
        short = _cut(value, MAX_VALUE_BYTES)
        room -= len(name) + len(short.encode())
        if room >= 0:
            info.metadata[name] = short
    packed = AnyMessage()
    packed.Pack(info)
    status = status_pb2.Status(code=error.code.value[0], message=shortened(error.message), details=[packed])
    return ((DETAILS_KEY, status.SerializeToString()),)


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> TandemError:
    """The error that the peer raised, as one of ours; by its reason, else by its status code."""
    info = _error_info(error)
    message = f"{peer}: {error.details() or error.code().name}"
    if info is not None and info.domain == DOMAIN and info.reason in BY_REASON:
        known = BY_REASON[info.reason](message)
        known.metadata = dict(info.metadata)
        return known
    code = error.code()
    if code in UNREACHABLE or (error.details() or "").startswith(CUT_WHILE_WRITING):
        return PeerUnavailable(message)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return WaitTimedOut(message)
    if code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}:
        return ProtocolViolation(message)
    return PeerFailed(f"{message} ({code.name})")


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    """The details; None where there are none, or they are no details: the status code says enough then."""
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return info
        except DecodeError:
            return None
    return None


def _cut(text: str, limit: int) -> str:
    """The text, cut to `limit` bytes as gRPC writes a status message: `%XX` for each byte that is not printable ASCII."""
    text = text[: limit + 1].encode(errors="replace").decode()
    widths = [sum(1 if byte in PRINTABLE and byte != ord("%") else 3 for byte in char.encode()) for char in text]
    if sum(widths) <= limit:
        return text
    room = limit - len(CUT)
    kept = 0
    while widths[kept] <= room:
        room -= widths[kept]
        kept += 1
    return text[:kept] + CUT
