"""Addresses that peers give us."""

from __future__ import annotations

import re

from common.errors import ProtocolViolation

ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?):([0-9]{1,5})")
MAX_PORT = 65_535


def checked_address(address: str) -> str:
    """The address, if it is host:port and nothing else (no gRPC scheme such as `unix:`). Raises ProtocolViolation."""
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) <= MAX_PORT:
        raise ProtocolViolation(f"{address[:80]!r} is not host:port")
    return address
