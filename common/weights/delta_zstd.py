"""Deltas for slow links: the same changes, as small numbers, compressed.

Offsets become the gaps between them (modulo 2^16, which also bridges the blocks), values their differences to the base's
words (modulo the word's size; a step of AdamW moves most words that it moves by one bit pattern up or down), both split
into planes of their low and high bytes, most of which are then constant; zstd packs the result.

    zstd( counts | gaps, plane by plane | differences span by span, each plane by plane )

The size before compression is that of the plain delta, whose decoder does the checking.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import zstandard

from common.errors import MalformedData
from common.weights.buffers import ByteArray
from common.weights.delta import OFFSET_BYTES, SpanDelta, check_offsets, divide, parse
from common.weights.manifest import Manifest

LEVEL = 1
"""Higher levels gain little on planes of noise, and take several times as long."""


def compress(encoded: ByteArray, manifest: Manifest, base: ByteArray) -> ByteArray:
    """A plain delta to `base`, compressed. Deterministic, so that a stream that was cut goes on with the same bytes."""
    parts = parse(encoded, manifest)
    pieces = [part.counts.view(np.uint8) for part in parts]
    if parts:
        offsets = np.concatenate([part.offsets for part in parts])
        pieces.append(_planes(np.diff(offsets, prepend=np.zeros(1, dtype=offsets.dtype))))
    for part in parts:
        words = part.span.view(base)
        differences = np.empty_like(part.values)
        for which, where in part.pieces():
            np.subtract(part.values[which], words[where], out=differences[which])
        pieces.append(_planes(differences))
    raw = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint8)
    return np.frombuffer(bytearray(zstandard.ZstdCompressor(level=LEVEL).compress(raw.data)), dtype=np.uint8)


def decompress(compressed: ByteArray, manifest: Manifest, base: ByteArray) -> tuple[SpanDelta, ...]:
    """The deltas of all spans, with absolute values again, fit to be applied to `base`, which is only read.

    Raises MalformedData for what `compress` could not have written; takes less memory than twice one version.
    """
    raw = _inflate(compressed, manifest.total_bytes)
    shape = divide(raw, manifest)
    sizes = [part.offsets.size for part in shape]
    gaps_at = sum(part.counts.nbytes for part in shape)
    values_at = gaps_at + OFFSET_BYTES * sum(sizes)
    offsets = np.cumsum(_unplanes(raw[gaps_at:values_at], OFFSET_BYTES), dtype="<u2")
    parts = []
    first = 0
    for part, size in zip(shape, sizes, strict=True):
        differences = _unplanes(raw[values_at : values_at + part.values.nbytes], part.span.word_bytes)
        plain = SpanDelta(part.span, part.counts, offsets[first : first + size], differences)
        # Before the differences are added: nothing may be read past the end of the base.
        check_offsets(plain)
        words = part.span.view(base)
        for which, where in plain.pieces():
            differences[which] += words[where]
        parts.append(plain)
        first += size
        values_at += differences.nbytes
    return tuple(parts)


def _planes(words: npt.NDArray[np.unsignedinteger]) -> ByteArray:
    """All low bytes, then all second bytes, and so on."""
    planes = np.empty((words.itemsize, words.size), dtype=np.uint8)
    for index, plane in enumerate(planes):
        # A loop over planes: numpy transposes word by word, which takes several times as long.
        plane[:] = words.view(np.uint8)[index :: words.itemsize]
    return planes.reshape(-1)


def _unplanes(data: ByteArray, word_bytes: int) -> npt.NDArray[np.unsignedinteger]:
    """The words of these planes; in memory of their own."""
    words = np.empty(data.size // word_bytes, dtype=f"<u{word_bytes}")
    for index, plane in enumerate(data.reshape(word_bytes, -1)):
        words.view(np.uint8)[index::word_bytes] = plane
    return words


def _inflate(compressed: ByteArray, limit: int) -> ByteArray:
    try:
        claimed = zstandard.frame_content_size(compressed.data)
        # -1: it does not say. Checked before the memory is taken that it claims.
        if not 0 <= claimed < limit:
            raise MalformedData(f"a compressed delta that claims {claimed} bytes, of a version of {limit}")
        raw = zstandard.ZstdDecompressor().decompress(compressed.data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedData(f"a compressed delta that zstd cannot read: {error}") from error
    return np.frombuffer(raw, dtype=np.uint8)
