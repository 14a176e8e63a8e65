"""Stop strings: found as tokens come, cut from the text at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MARGIN = 8
"""Tokens decoded beyond a stop string's own: decoders treat the first tokens of a text specially (leading spaces,
pieces of a character), and a few tokens may decode to nothing."""


def window(stops: Sequence[str]) -> int:
    """Tokens at the end of a response in which a stop string that was just completed must lie: a token has ≥ 1 byte."""
    return max(len(stop.encode()) for stop in stops) + _MARGIN


def contains_stop(tokenizer: Any, tail: Sequence[int], stops: Sequence[str]) -> bool:
    """Whether the text of the last tokens has a stop string; special tokens count as text here."""
    text = tokenizer.decode(list(tail), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return any(stop in text for stop in stops)


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return text[: min(places)] if places else text
