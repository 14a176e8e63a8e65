"""The one server interceptor: maps errors to status codes, bounds and counts calls, and logs what went wrong.

Health checks pass it by: they must answer even when everything else is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from common.errors import LimitExceeded, MalformedData, TandemError
from common.rpc.errors import shortened, status_details
from common.rpc.peers import plain

log = structlog.get_logger(__name__)

# The stubs' generic parameters are those of one method; the interceptor serves all of them.
Handler = Any
Context = Any
EXEMPT = ("/grpc.health.v1.Health/",)


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Stands for a request that is no message: gRPC itself would answer with our exception's text."""

    error: MalformedData


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method of our services.

    A `TandemError` becomes its status code with details. Anything else is our own fault: it is logged with its traceback,
    and the peer gets INTERNAL without the text, which may hold what is not for others.
    """

    def __init__(self, max_calls: int) -> None:
        # gRPC's own bound on concurrent calls could be bypassed (grpc #41531).
        self._max_calls = max_calls
        self._open_calls = 0

    @property
    def open_calls(self) -> int:
        """Calls in progress, health checks aside."""
        return self._open_calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wraps the handler that the call will get."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(EXEMPT):
            return handler
        handler = handler._replace(request_deserializer=_guarded(handler))
        if handler.request_streaming and handler.response_streaming:
            return handler._replace(stream_stream=self._streaming(handler.stream_stream, method))
        if handler.response_streaming:
            return handler._replace(unary_stream=self._streaming(handler.unary_stream, method))
        if handler.request_streaming:
            return handler._replace(stream_unary=self._unary(handler.stream_unary, method))
        return handler._replace(unary_unary=self._unary(handler.unary_unary, method))

    def _unary(self, method: Callable[[Any, Context], Awaitable[Any]], name: str) -> Any:
        async def call(request: Any, context: Context) -> Any:
            try:
                self._take(name)
                try:
                    result = method(_decoded(request), context)
                    return await result if asyncio.iscoroutine(result) else result
                finally:
                    self._open_calls -= 1
            except Exception as error:  # noqa: BLE001 - mapped, logged and sent to the peer
                await _abort(error, context, name)

        return call

    def _streaming(self, method: Callable[[Any, Context], AsyncGenerator[Any, None]], name: str) -> Any:
        # A coroutine that writes, no generator: a call that is cut while it writes ends here, in this frame, and the
        # method's generator is closed at once; gRPC leaves a generator of ours to the garbage collector.
        async def call(request: Any, context: Context) -> None:
            try:
                self._take(name)
                try:
                    responses = method(_decoded(request), context)
                    try:
                        async for response in responses:
                            await context.write(response)
                    finally:
                        await responses.aclose()
                finally:
                    self._open_calls -= 1
            except Exception as error:  # noqa: BLE001 - mapped, logged and sent to the peer
                await _abort(error, context, name)

        return call

    def _take(self, name: str) -> None:
        if self._open_calls >= self._max_calls:
            raise LimitExceeded(f"{self._max_calls} calls are open, limits.streams allows no more", method=name)
        self._open_calls += 1


def _guarded(handler: Handler) -> Callable[[bytes], Any] | None:
    """The handler's deserializer; what does not decode is MalformedData, raised where the method, or we, read it."""
    deserialize = handler.request_deserializer
    if deserialize is None:
        return None

    def guarded(data: bytes) -> Any:
        try:
            return deserialize(data)
        except (DecodeError, MalformedData) as error:
            refused = error if isinstance(error, MalformedData) else MalformedData(f"{len(data)} bytes are no request")
            if handler.request_streaming:
                raise refused from error
            return _Undecodable(refused)

    return guarded


def _decoded(request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise request.error
    return request


async def _abort(error: Exception, context: Context, method: str) -> None:
    if isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError):
        raise error  # gRPC's own: the call was aborted, or the server stops
    if isinstance(error, TandemError):
        log.warning("rpc_refused", method=method, reason=error.reason, error=plain(error.message), peer=context.peer())
        await context.abort(error.code, shortened(error.message), status_details(error))
    log.error("rpc_failed", method=method, peer=context.peer(), exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has the cause")
