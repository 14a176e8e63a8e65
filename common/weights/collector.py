"""The chunks of a push, collected in order: verified, put in place, asked for again when one is lost."""

from __future__ import annotations

import threading

import numpy as np
import xxhash

from common.errors import CorruptData, ProtocolViolation
from common.weights.buffers import ByteArray


class ChunkCollector:
    """Collects the encoded bytes of one version. Safe to call from several threads.

    A subclass ends it: it takes nothing more after `close`.
    """

    def __init__(self, buffer: ByteArray) -> None:
        """`buffer` has the size of the encoded bytes."""
        self._buffer: ByteArray | None = buffer
        self._total = buffer.size
        self._received = 0
        self._awaits_resend = False
        self._lock = threading.Lock()

    @property
    def received(self) -> int:
        """Bytes that arrived, verified and in order: where a cut stream goes on."""
        return self._received

    @property
    def encoded_bytes(self) -> int:
        """Bytes that all chunks carry together."""
        return self._total

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self._received == self._total

    def write(self, offset: int, xxh3: int, data: bytes | memoryview) -> bool:
        """Puts a chunk in its place; returns whether it was new.

        A chunk that repeats what has arrived is ignored. A corrupt chunk, or one that leaves a gap, raises CorruptData
        once; `received` stays, the sender is asked for a resend from there, and what was in flight behind the lost
        chunk is ignored until that arrives. A chunk past the end or partly repeated raises ProtocolViolation, and so
        does any chunk once another version took this one's place.
        """
        with self._lock:
            if self._buffer is None:
                raise ProtocolViolation("a chunk of a version that is complete, or that another one replaced")
            size = len(data)
            end = offset + size
            if offset < 0 or size == 0 or end > self._total:
                raise ProtocolViolation(f"a chunk of {size} bytes at {offset}, of {self._total} bytes in all")
            if end <= self._received:
                return False
            if offset < self._received:
                raise ProtocolViolation(f"a chunk of {size} bytes at {offset} overlaps the {self._received} received")
            if offset > self._received:
                return self._lost(f"a gap: expected byte {self._received}, got {offset}")
            self._store(offset, end, xxh3, data)
            return True

    def _store(self, offset: int, end: int, xxh3: int, data: bytes | memoryview) -> None:
        assert self._buffer is not None  # noqa: S101 - for mypy; `write` has checked it
        if xxhash.xxh3_64_intdigest(data) != xxh3:
            # A resend that is corrupt again is a new loss, and must be reported.
            self._awaits_resend = False
            self._lost(f"the checksum of the chunk at byte {offset} does not match")
        self._buffer[offset:end] = np.frombuffer(data, dtype=np.uint8)
        self._stored(self._buffer, offset, end)
        self._received = end
        self._awaits_resend = False

    def _stored(self, buffer: ByteArray, offset: int, end: int) -> None:
        """Bytes `offset` to `end` are in place, and still in the processor's cache."""

    def _lost(self, what: str) -> bool:
        if self._awaits_resend:
            return False
        self._awaits_resend = True
        raise CorruptData(what, resume_at=self._received)

    def resume(self) -> int:
        """A new stream goes on with this version: what the old one lost is no longer awaited. Returns `received`."""
        with self._lock:
            self._awaits_resend = False
            return self._received

    def close(self) -> None:
        """Gives its memory up; further chunks are refused."""
        with self._lock:
            self._buffer = None
