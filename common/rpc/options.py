"""Channel arguments, for both ends. Each was measured or read in gRPC's source; see the comments."""

from __future__ import annotations

from common.config.root import LimitsConfig

Options = list[tuple[str, int | str]]

PING_INTERVAL_MS = 10_000
"""How often a side asks whether the other is alive."""
PING_TIMEOUT_MS = 5_000
"""A frozen peer is found after so long. `grpc.keepalive_timeout_ms`, which says the same, has no effect in Python."""
PING_FLOOR_MS = 5_000
"""Pings that come faster than this end in GOAWAY too_many_pings; it must lie below PING_INTERVAL_MS."""
HANDSHAKE_TIMEOUT_MS = 10_000
"""A connection that never finishes its handshake is closed."""
MAX_INCOMING_CONNECTIONS = 512
"""Connections that one server accepts at once: half of the 1024 files that a process may commonly open."""
CONNECTION_IDLE_MS = 60_000
"""A connection without a call is closed; the peers' channels open another with their next call."""
CHANNEL_IDLE_MS = 30_000
"""A channel without a call closes its connection before the server does, which would be a line in its log."""
STREAMS_A_CONNECTION = 4
"""Times `limits.streams` that one connection may open at once: enough for a peer to be told that it is too many."""


def shared_options(limits: LimitsConfig) -> Options:
    """What a channel and a server have in common."""
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(limits: LimitsConfig) -> Options:
    """For a server."""
    return [
        *shared_options(limits),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_FLOOR_MS),
        # Else a second server binds the same port without a word and takes half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_allowed_incoming_connections", MAX_INCOMING_CONNECTIONS),
        ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
        ("grpc.max_concurrent_streams", STREAMS_A_CONNECTION * limits.streams),
    ]


def channel_options(limits: LimitsConfig) -> Options:
    """For a channel."""
    return [
        *shared_options(limits),
        # Reconnect soon after a peer is back: the default waits up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # Each channel has connections of its own, so that closing it closes them.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.client_idle_timeout_ms", CHANNEL_IDLE_MS),
        ("grpc.enable_retries", 0),
    ]
