"""Which encoding brings a version to an explorer soonest: a model of the seconds that each takes.

The constants were measured on one core of the machine that docs/performance.md describes; a factor that is measured as
we go, `slowness`, carries them to other machines and to loaded ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.weights.encoding import Encoding

ENCODE_SECONDS_A_BYTE = 1 / 6.6e9
"""Comparing two versions, for each byte of one."""
ENCODE_SECONDS_A_CHANGE = 12e-9
VERIFY_SECONDS_A_BYTE = 1 / 8e9
"""Hashing and checking all tensors after a delta was applied; within a full push the first is hidden by the transfer."""
APPLY_SECONDS_A_CHANGE = 4e-9
COMPRESS_SECONDS_A_CHANGE = 15e-9
DECOMPRESS_SECONDS_A_CHANGE = 15e-9
ZSTD_BITS_ABOVE_ENTROPY = 3.5
"""Bits a change: about one for the new value, the rest for what zstd's fastest level misses."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much of a version differs from a base."""

    total_bytes: int
    words: int
    changes: float
    plain_bytes: float
    """Of the plain delta."""

    @property
    def density(self) -> float:
        """Share of the words that changed."""
        return self.changes / self.words if self.words else 0.0

    @property
    def zstd_bytes(self) -> float:
        """Expected of the compressed delta: the entropy of positions that fall at random, and somewhat more."""
        p = min(max(self.density, 1e-9), 0.5)
        entropy = -math.log2(p) - (1 - p) / p * math.log2(1 - p)
        return min(self.plain_bytes, self.changes * (entropy + ZSTD_BITS_ABOVE_ENTROPY) / 8)


@dataclass(frozen=True, slots=True)
class Choice:
    """An encoding, and why."""

    encoding: Encoding
    reason: str


def expected_seconds(
    difference: Difference, bytes_per_second: float, slowness: float, *, encoded: bool = False
) -> dict[Encoding, float]:
    """From the decision to the verified version at the explorer; `encoded`: the plain delta is there already."""
    d = difference
    verify = d.total_bytes * VERIFY_SECONDS_A_BYTE + d.changes * APPLY_SECONDS_A_CHANGE
    encode = 0.0 if encoded else d.total_bytes * ENCODE_SECONDS_A_BYTE + d.changes * ENCODE_SECONDS_A_CHANGE
    pack = d.changes * (COMPRESS_SECONDS_A_CHANGE + DECOMPRESS_SECONDS_A_CHANGE)
    return {
        Encoding.FULL: d.total_bytes / bytes_per_second,
        Encoding.DELTA: slowness * (encode + verify) + d.plain_bytes / bytes_per_second,
        Encoding.DELTA_ZSTD: slowness * (encode + verify + pack) + d.zstd_bytes / bytes_per_second,
    }


def choose(difference: Difference, bytes_per_second: float, slowness: float, *, encoded: bool = False) -> Choice:
    """The encoding with the fewest expected seconds, among those that are smaller than the full version."""
    seconds = expected_seconds(difference, bytes_per_second, slowness, encoded=encoded)
    shown = ", ".join(f"{encoding.value} {value:.3g}" for encoding, value in seconds.items())
    at = f"{100 * difference.density:.2g} % of the words changed, at {bytes_per_second / 1e6:.3g} MB/s"
    if difference.plain_bytes >= difference.total_bytes:
        return Choice(Encoding.FULL, f"{at} a delta would be larger")
    return Choice(min(seconds, key=lambda encoding: seconds[encoding]), f"{at} expected seconds are: {shown}")


class LinkRate:
    """Bytes a second that pushes to one explorer reach, learned from those that were."""

    ASSUMED = 1e9
    """Before the first push."""
    RELIABLE_BYTES = 64 << 10
    """What fits into fewer bytes measures latency."""

    def __init__(self) -> None:
        self.bytes_per_second = self.ASSUMED
        self._known = False

    def observe(self, sent: int, seconds: float, receiver_seconds: float) -> None:
        """A push of so many bytes took so long, of which the receiver worked (estimated) so long beside the transfer.

        Where its work dominates, the transfer can only be seen to be at least so fast.
        """
        transfer = seconds - receiver_seconds
        if sent < self.RELIABLE_BYTES or seconds <= 0:
            return
        if transfer < seconds / 2:
            self.bytes_per_second = max(self.bytes_per_second, sent / seconds)
            return
        rate = sent / transfer
        self.bytes_per_second = (self.bytes_per_second + rate) / 2 if self._known else rate
        self._known = True


class Slowness:
    """How many times as long as in the model encoding takes on this machine, under its present load."""

    BOUNDS = (0.25, 16.0)

    def __init__(self) -> None:
        self.factor = 1.0

    def observe(self, difference: Difference, seconds: float) -> None:
        """Encoding this took so long."""
        modelled = difference.total_bytes * ENCODE_SECONDS_A_BYTE + difference.changes * ENCODE_SECONDS_A_CHANGE
        if modelled > 0:
            low, high = self.BOUNDS
            self.factor = (self.factor + min(max(seconds / modelled, low), high)) / 2
