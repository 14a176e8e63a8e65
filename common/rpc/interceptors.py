"""The one server interceptor: maps errors to status codes, counts calls, and logs what went wrong.

Health checks pass it by: they must answer even when everything else is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog

from common.errors import LimitExceeded, TandemError
from common.rpc.errors import shortened, status_details

log = structlog.get_logger(__name__)

# The stubs' generic parameters are those of one method; the interceptor serves all of them.
Handler = Any
Context = Any
EXEMPT = ("/grpc.health.v1.Health/",)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method of our services.

    A `TandemError` becomes its status code with details. Anything else is our own fault: it is logged with its traceback,
    and the peer gets INTERNAL without the text, which may hold what is not for others.
    """

    def __init__(self, max_calls: int) -> None:
        # gRPC's own bound on concurrent calls could be bypassed (grpc #41531).
        self._max_calls = max_calls
        self._open_calls = 0

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
                    result = method(request, context)
                    return await result if asyncio.iscoroutine(result) else result
                finally:
                    self._open_calls -= 1
            except Exception as error:  # noqa: BLE001 - mapped, logged and sent to the peer
                await _abort(error, context, name)

        return call

    def _streaming(self, method: Callable[[Any, Context], AsyncIterator[Any]], name: str) -> Any:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                self._take(name)
                try:
                    async for response in _responses(method, request, context):
                        yield response
                finally:
                    self._open_calls -= 1
            except Exception as error:  # noqa: BLE001 - mapped, logged and sent to the peer
                await _abort(error, context, name)

        return call

    def _take(self, name: str) -> None:
        if self._open_calls >= self._max_calls:
            raise LimitExceeded(f"{self._max_calls} calls are open, limits.streams allows no more", method=name)
        self._open_calls += 1


async def _responses(
    method: Callable[[Any, Context], AsyncIterator[Any]], request: Any, context: Context
) -> AsyncIterator[Any]:
    """The method's responses; closes its generator when the call ends early, so that its `finally` runs at once."""
    responses = method(request, context)
    try:
        async for response in responses:
            yield response
    finally:
        close = getattr(responses, "aclose", None)
        if close is not None:
            await close()


async def _abort(error: Exception, context: Context, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, TandemError):
        log.warning("rpc_refused", method=method, reason=error.reason, error=error.message, peer=context.peer())
        await context.abort(error.code, shortened(error.message), status_details(error))
    log.error("rpc_failed", method=method, peer=context.peer(), exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has the cause")
