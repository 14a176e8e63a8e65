"""How the bytes of a push become those of a version."""

from __future__ import annotations

import enum


class Encoding(enum.Enum):
    """See `WeightEncoding` in weights.proto."""

    FULL = "full"
    """Every byte, at the offsets of the manifest."""
    DELTA = "delta"
    """Changed words, see `common.weights.delta`."""
    DELTA_ZSTD = "delta_zstd"
    """Changed words as small numbers, compressed, see `common.weights.delta_zstd`."""
