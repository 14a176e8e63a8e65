"""The revision of the wire contract."""

PROTOCOL_REVISION = 2
"""Raised whenever a message changes its meaning; peers of different revisions refuse each other at the handshake."""
