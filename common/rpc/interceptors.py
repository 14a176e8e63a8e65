"""The one server interceptor: lets in who may call, bounds and counts calls, maps errors to status codes and logs them.

Health checks pass it by: they must answer even when everything else is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from common.config.security import Role
from common.errors import (
    LimitExceeded,
    MalformedData,
    PermissionDenied,
    TandemError,
    Unauthenticated,
    WaitTimedOut,
)
from common.rpc.authorization import HEALTH, Gatekeeper, calling_role
from common.rpc.errors import shortened, status_details
from common.rpc.peers import plain

log = structlog.get_logger(__name__)

# The stubs' generic parameters are those of one method; the interceptor serves all of them.
Handler = Any
Context = Any
REQUEST_SECONDS = 10.0
"""For the one request of a call: it holds one of `limits.streams` meanwhile."""
LOGGED_TOGETHER_SECONDS = 10.0
"""Of refusals that anybody can cause as often as he likes, one is logged in so long, with the number of the others."""
LOGGED_TOGETHER = (Unauthenticated, PermissionDenied, LimitExceeded)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method of our services.

    A `TandemError` becomes its status code with details. Anything else is our own fault: it is logged with its traceback,
    and the peer gets INTERNAL without the text, which may hold what is not for others.
    """

    def __init__(self, max_calls: int, gate: Gatekeeper | None = None) -> None:
        """Without a `gate` everybody may call everything."""
        # gRPC's own bound on concurrent calls could be bypassed (grpc #41531).
        self._max_calls = max_calls
        self._gate = gate
        self._open_calls: Counter[Role | None] = Counter()
        self._logged: dict[str, float] = {}
        self._not_logged: dict[str, int] = {}

    @property
    def open_calls(self) -> int:
        """Calls in progress, health checks aside."""
        return self._open_calls.total()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wraps the handler that the call will get.

        Every method takes its requests as a stream: what is no stream gRPC reads to its end, up to `limits.message_bytes`,
        before anybody could be refused.
        """
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(HEALTH):
            return handler
        if handler.response_streaming:
            wrapped = self._streaming(handler, method)
            return grpc.stream_stream_rpc_method_handler(wrapped, _guarded(handler), handler.response_serializer)
        wrapped = self._unary(handler, method)
        return grpc.stream_unary_rpc_method_handler(wrapped, _guarded(handler), handler.response_serializer)

    def _unary(self, handler: Handler, name: str) -> Any:
        async def call(requests: AsyncIterator[Any], context: Context) -> Any:
            try:
                role = self._admit(name, context)
                try:
                    if handler.request_streaming:
                        return await handler.stream_unary(requests, context)
                    result = handler.unary_unary(await _only(requests), context)
                    return await result if asyncio.iscoroutine(result) else result
                finally:
                    self._open_calls[role] -= 1
            except Exception as error:  # noqa: BLE001 - mapped, logged and sent to the peer
                await self._abort(error, context, name)

        return call

    def _streaming(self, handler: Handler, name: str) -> Any:
        # A coroutine that writes, no generator: a call that is cut while it writes ends here, in this frame, and the
        # method's generator is closed at once; gRPC leaves a generator of ours to the garbage collector.
        async def call(requests: AsyncIterator[Any], context: Context) -> None:
            try:
                role = self._admit(name, context)
                try:
                    if handler.request_streaming:
                        responses = handler.stream_stream(requests, context)
                    else:
                        responses = handler.unary_stream(await _only(requests), context)
                    try:
                        async for response in responses:
                            await context.write(response)
                    finally:
                        await responses.aclose()
                finally:
                    self._open_calls[role] -= 1
            except Exception as error:  # noqa: BLE001 - mapped, logged and sent to the peer
                await self._abort(error, context, name)

        return call

    def _admit(self, name: str, context: Context) -> Role | None:
        if self._gate is not None:
            self._gate.admit(name, context)
        # Each role has a bound of its own: what one holds open keeps no other out.
        role = calling_role()
        if self._open_calls[role] >= self._max_calls:
            raise LimitExceeded(f"{self._max_calls} calls are open, limits.streams allows no more", method=name)
        self._open_calls[role] += 1
        return role

    async def _abort(self, error: Exception, context: Context, method: str) -> None:
        if isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError):
            raise error  # gRPC's own: the call was aborted, or the server stops
        if isinstance(error, TandemError):
            self._log_refusal(error, context, method)
            await context.abort(error.code, shortened(error.message), status_details(error))
        log.error("rpc_failed", method=method, peer=context.peer(), exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has the cause")

    def _log_refusal(self, error: TandemError, context: Context, method: str) -> None:
        others = {}
        if isinstance(error, LOGGED_TOGETHER):
            now = time.monotonic()
            if now - self._logged.get(error.reason, -LOGGED_TOGETHER_SECONDS) < LOGGED_TOGETHER_SECONDS:
                self._not_logged[error.reason] = self._not_logged.get(error.reason, 0) + 1
                return
            self._logged[error.reason] = now
            others = {"others_before": self._not_logged.pop(error.reason, 0)}
        log.warning(
            "rpc_refused",
            method=method,
            reason=error.reason,
            error=plain(error.message),
            peer=context.peer(),
            **others,
        )


async def _only(requests: AsyncIterator[Any]) -> Any:
    """The request of a call that has one."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            request = await anext(requests, None)
    except TimeoutError as error:
        raise WaitTimedOut(f"no request came within {REQUEST_SECONDS:g} seconds") from error
    if request is None:
        raise MalformedData("the call ended without a request")
    return request


def _guarded(handler: Handler) -> Callable[[bytes], Any] | None:
    """The handler's deserializer; what does not decode is MalformedData, raised where the request is read."""
    deserialize = handler.request_deserializer
    if deserialize is None:
        return None

    def guarded(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            raise MalformedData(f"{len(data)} bytes are no request") from error

    return guarded
