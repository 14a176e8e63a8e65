"""Channels to the other service."""

from __future__ import annotations

import grpc

from common.config.root import LimitsConfig
from common.rpc.credentials import Caller, CallerCredentials, channel_credentials
from common.rpc.options import channel_options
from common.rpc.secured_channel import SecuredChannel
from common.rpc.tls_files import TlsMaterial

QUICK_CALL_SECONDS = 10.0
"""Deadline of calls that only look or note something."""


def open_channel(address: str, limits: LimitsConfig, caller: Caller | None = None) -> grpc.aio.Channel:
    """A channel to host:port. Connects on first use, and again whenever the peer comes back.

    Without a `caller` it is plain. Raises ConfigError for certificates, keys or tokens that cannot be used.
    """
    options = channel_options(limits)
    credentials = CallerCredentials(caller) if caller is not None else None
    if credentials is None or credentials.plain:
        return grpc.aio.insecure_channel(address, options=options)

    def opened(material: TlsMaterial | None) -> grpc.aio.Channel:
        if material is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, channel_credentials(material), options=[*options, *credentials.options])

    return SecuredChannel(credentials, opened)
