"""Channels to the other service."""

from __future__ import annotations

import grpc

from common.config.root import LimitsConfig
from common.rpc.options import channel_options

QUICK_CALL_SECONDS = 10.0
"""Deadline of calls that only look or note something."""


def open_channel(address: str, limits: LimitsConfig) -> grpc.aio.Channel:
    """A channel to host:port. Connects on first use, and again whenever the peer comes back."""
    return grpc.aio.insecure_channel(address, options=channel_options(limits))
