"""The end of a service's log, as the reason why it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from common.cli.words import clean

_TAIL_BYTES = 64 << 10
_SHOWN_LINES = 6
_SHOWN_ERRORS = 3
_ERRORS = frozenset({"error", "critical", "exception"})
_BLAMES_THE_PEER = frozenset({"PEER_FAILED", "PEER_UNAVAILABLE"})
"""Reasons of a service that ended because the other one did."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the last lines of a log say."""

    lines: tuple[str, ...]
    """The errors, newest last; without any, the last lines whatever they are."""
    blames_peer: bool
    """The last error is that the other side failed or was gone."""


def log_end(path: Path, offset: int) -> LogEnd:
    """The end of a log, what was there before `offset` left out. An unreadable log gives one line that says so."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(offset, size - _TAIL_BYTES)
            file.seek(start)
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return LogEnd((f"(the log cannot be read: {error.strerror})",), blames_peer=False)
    lines = [line for line in text.splitlines() if line.strip()]
    events = [(line, _parse(line)) for line in lines]
    errors = [_said(event) for _, event in events if event is not None and event.get("level") in _ERRORS]
    last = next((event for _, event in reversed(events) if event and event.get("level") in _ERRORS), {})
    # Lines that are no JSON at the very end: what Python writes when it dies outside of the service's own handling.
    raw: list[str] = []
    for line, event in reversed(events):
        if event is not None:
            break
        raw.insert(0, clean(line))
    said = [*errors[-_SHOWN_ERRORS:], *raw[-_SHOWN_LINES:]] or [
        _said(event) if event is not None else clean(line) for line, event in events[-_SHOWN_LINES:]
    ]
    return LogEnd(tuple(said), blames_peer=last.get("reason") in _BLAMES_THE_PEER)


def _parse(line: str) -> dict[str, object] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _said(event: dict[str, object]) -> str:
    """`run_failed (PEER_UNAVAILABLE): no explorer for 120 seconds`."""
    name = str(event.get("event", "?"))
    reason = f" ({event['reason']})" if event.get("reason") and event.get("error") else ""
    rest = event.get("error") or event.get("reason")
    return clean(f"{name}{reason}: {rest}" if rest else name)
