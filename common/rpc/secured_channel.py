"""A channel that shows a token with each call, and that takes up new certificates without being opened again.

gRPC's own channel keeps the certificates that it was made with. This one holds such a channel for the newest files: calls
begin on it, and one that is open stays where it began; a channel of older files closes when its last call has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import grpc

from common.rpc.credentials import CallerCredentials
from common.rpc.tls_files import TlsMaterial

Open = Callable[[TlsMaterial | None], grpc.aio.Channel]


class SecuredChannel(grpc.aio.Channel):
    """As `grpc.aio.Channel`, for what our stubs use."""

    def __init__(self, credentials: CallerCredentials, open_channel: Open) -> None:
        """`open_channel` makes gRPC's channel of the certificates; None: without TLS."""
        self._credentials = credentials
        self._open = open_channel
        self._newest = _Generation(credentials.material, open_channel)
        self._closing: set[asyncio.Task[None]] = set()
        self._older: set[_Generation] = set()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls of this kind of one method."""
        return self._calls("unary_unary", method, args, kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls of this kind of one method."""
        return self._calls("unary_stream", method, args, kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls of this kind of one method."""
        return self._calls("stream_unary", method, args, kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls of this kind of one method."""
        return self._calls("stream_stream", method, args, kwargs)

    async def close(self, grace: float | None = None) -> None:
        """Closes the connections, and ends the calls that are open after `grace` seconds."""
        await asyncio.gather(*(held.channel.close(grace) for held in (self._newest, *self._older)), *self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Of the newest channel."""
        return self._current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Of the newest channel."""
        await self._newest.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Of the newest channel."""
        await self._current().channel.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _calls(self, kind: str, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
        def call(*call_args: Any, metadata: Any = None, **call_kwargs: Any) -> Any:
            generation = self._current()
            made = generation.calls(kind, method, args, kwargs)
            sent = (*(metadata or ()), *self._credentials.metadata)
            begun = made(*call_args, metadata=sent, **call_kwargs)
            generation.open_calls += 1
            begun.add_done_callback(lambda _: self._ended(generation))
            return begun

        return call

    def _current(self) -> _Generation:
        material = self._credentials.material
        if material is not self._newest.material:
            before, self._newest = self._newest, _Generation(material, self._open)
            self._older.add(before)
            self._close_unused(before)
        return self._newest

    def _ended(self, generation: _Generation) -> None:
        generation.open_calls -= 1
        self._close_unused(generation)

    def _close_unused(self, generation: _Generation) -> None:
        if generation.open_calls == 0 and generation in self._older:
            self._older.discard(generation)
            task = asyncio.get_running_loop().create_task(generation.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _Generation:
    """gRPC's channel for one state of the files."""

    def __init__(self, material: TlsMaterial | None, open_channel: Open) -> None:
        self.material = material
        self.channel = open_channel(material)
        self.open_calls = 0

    def calls(self, kind: str, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """GRPC's own callable."""
        return getattr(self.channel, kind)(method, *args, **kwargs)
