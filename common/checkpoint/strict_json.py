"""JSON from files that nobody vouches for."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_strictly(text: bytes) -> Any:
    """Parses JSON, refusing what parsers disagree on: a key twice in one object, NaN, infinities, odd encodings.

    Raises ValueError for whatever is wrong. Bounds on size are the caller's.
    """
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
