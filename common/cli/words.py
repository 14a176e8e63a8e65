"""Numbers, times and foreign text as people read them on a terminal."""

from __future__ import annotations

import math
from typing import Any

_MAX_CHARACTERS = 500
_MINUTE = 60
_HOUR = 3600


def clean(text: str, limit: int = _MAX_CHARACTERS) -> str:
    """Text of a peer or a log on one line: no escape sequences, no line breaks, and not without end."""
    plain = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return plain if len(text) <= limit else plain[: limit - 1] + "…"


def duration(seconds: float) -> str:
    """`0.42 s`, `12 s`, `3:05`, `1:02:03`."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return clock(seconds)


def clock(seconds: float) -> str:
    """`0:07`, `3:05`, `1:02:03`."""
    whole = int(max(0.0, seconds))
    hours, rest = divmod(whole, _HOUR)
    minutes, left = divmod(rest, _MINUTE)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """Tokens a second, as `12,340 tok/s`; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:,.0f} tok/s"


def state_words(enum: Any, value: int) -> str:
    """A protobuf enum's TRAINER_STATE_WAITING_FOR_EXPLORERS as `waiting for explorers`; one of newer software by its number."""
    try:
        name = str(enum.Name(value))
    except ValueError:
        return f"state {value}"
    return name.partition("_STATE_")[2].lower().replace("_", " ")
