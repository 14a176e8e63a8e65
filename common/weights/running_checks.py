"""The checks of a version's tensors, made piece by piece while the bytes are still in the processor's cache."""

from __future__ import annotations

import xxhash

from common.weights.buffers import ByteArray
from common.weights.finite import finite_bytes
from common.weights.manifest import DTYPES, Manifest

PIECE_BYTES = 1 << 20
"""Of a version that is all there: fits into the cache, so that only the first of the checks reads it from memory."""


class RunningChecks:
    """Hashes the tensors and looks for NaN and infinity, as their bytes come in order."""

    def __init__(self, manifest: Manifest) -> None:
        """Of a validated manifest."""
        self.mismatches: list[str] = []
        """Tensors whose xxh3-128 is not the manifest's."""
        self.not_finite = ""
        """The first tensor with a NaN or an infinity."""
        self._entries = manifest.tensors
        self._index = 0
        self._checked = 0
        self._state = xxhash.xxh3_128()
        self._close_complete(0)

    def update(self, data: ByteArray, start: int, stop: int) -> None:
        """Goes on with bytes `start` to `stop` of the version, which directly follow the last ones.

        `data` is the version's memory, complete up to `stop`.
        """
        position = start
        while position < stop:
            entry = self._entries[self._index]
            upto = min(entry.offset + entry.length, stop)
            self._state.update(data[position:upto].data)
            self._check_finite(data, upto)
            position = upto
            self._close_complete(position)

    def update_all(self, data: ByteArray) -> None:
        """`update` of a whole version."""
        for start in range(0, data.size, PIECE_BYTES):
            self.update(data, start, min(start + PIECE_BYTES, data.size))

    def _check_finite(self, data: ByteArray, stop: int) -> None:
        entry = self._entries[self._index]
        # Pieces may end within a number: it is looked at when all of it is there.
        begin = max(self._checked, entry.offset)
        end = stop - (stop - entry.offset) % DTYPES[entry.dtype].itemsize
        if not self.not_finite and not finite_bytes(data[begin:end], entry.dtype):
            self.not_finite = entry.name
        self._checked = end

    def _close_complete(self, position: int) -> None:
        """Compares the tensors that end here; several where some are empty."""
        while self._index < len(self._entries):
            entry = self._entries[self._index]
            if position < entry.offset + entry.length:
                return
            if self._state.digest() != entry.xxh3:
                self.mismatches.append(entry.name)
            self._state.reset()
            self._index += 1
