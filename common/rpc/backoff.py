"""Pauses between attempts to reach a peer."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 2.0


def pauses() -> Iterator[float]:
    """Seconds, doubling up to `LONGEST_SECONDS`, with a fifth of jitter so that peers do not come back in step."""
    seconds = FIRST_SECONDS
    while True:
        yield seconds * random.uniform(0.8, 1.2)
        seconds = min(2 * seconds, LONGEST_SECONDS)
