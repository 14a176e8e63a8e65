"""Channels of programs that ask something and end: `tandem status`, the health probe."""

from __future__ import annotations

from typing import Any

import grpc

from common.rpc.credentials import Caller, CallerCredentials, channel_credentials


def open_blocking_channel(address: str, caller: Caller) -> grpc.Channel:
    """A channel to host:port, for calls with one request and one response.

    Raises ConfigError for certificates, keys or tokens that cannot be used.
    """
    credentials = CallerCredentials(caller)
    material = credentials.material
    if material is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, channel_credentials(material), options=credentials.options)
    return grpc.intercept_channel(channel, _WithToken(credentials))


class _WithToken(grpc.UnaryUnaryClientInterceptor):
    """Shows the token with each call."""

    def __init__(self, credentials: CallerCredentials) -> None:
        self._credentials = credentials

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Adds the metadata."""
        metadata = (*(client_call_details.metadata or ()), *self._credentials.metadata)
        return continuation(_Details(client_call_details, metadata), request)


class _Details(grpc.ClientCallDetails):
    """The same call with other metadata."""

    def __init__(self, of: Any, metadata: Any) -> None:
        self.method = of.method
        self.timeout = of.timeout
        self.metadata = metadata
        self.credentials = of.credentials
        self.wait_for_ready = of.wait_for_ready
        self.compression = of.compression
