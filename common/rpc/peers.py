"""What peers call themselves and tell us: checked, and fit to be shown."""

from __future__ import annotations

import re

from common.errors import ProtocolViolation
from common.wire.experiences import EXPLORER_ID

ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?):([0-9]{1,5})")
MAX_PORT = 65_535
PLAIN_CHARACTERS = 200
"""Of a peer's text in our log and status."""


def checked_address(address: str) -> str:
    """The address, if it is host:port and nothing else (no gRPC scheme such as `unix:`). Raises ProtocolViolation."""
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) <= MAX_PORT:
        raise ProtocolViolation(f"{address[:80]!r} is not host:port")
    return address


def checked_explorer_id(explorer_id: str) -> str:
    """The name, if a configuration could give it to an explorer. Raises ProtocolViolation."""
    if EXPLORER_ID.fullmatch(explorer_id) is None:
        raise ProtocolViolation(f"{explorer_id[:80]!r} is no explorer id")
    return explorer_id


def plain(text: str) -> str:
    """One printable line of a peer's text, cut: a terminal that shows our log obeys no peer."""
    line = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:PLAIN_CHARACTERS]
    )
    return line if len(text) <= PLAIN_CHARACTERS else f"{line}..."
