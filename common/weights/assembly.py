"""One version on its way in: chunks are verified, put in place, and checked tensor by tensor."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xxhash

from common.errors import CorruptData, ProtocolViolation
from common.weights.buffers import BufferPool
from common.weights.manifest import Manifest, tensor_views

NAMED_TENSORS = 5
"""How many corrupt tensors an error names."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedWeights:
    """A version that is complete and verified, and not applied yet."""

    manifest: Manifest
    """What it is."""
    tensors: Mapping[str, torch.Tensor]
    """CPU tensors by name, views into one buffer, which is used again for a later version once all of them are gone."""


class WeightAssembly:
    """Collects the encoded bytes of one version, in order; of a validated manifest.

    Safe to call from several threads. After `close` or a successful `finish` it takes nothing more.
    """

    def __init__(self, manifest: Manifest, encoded_bytes: int, pool: BufferPool | None = None) -> None:
        """Takes the memory. Raises ProtocolViolation when `encoded_bytes` is not what the manifest needs."""
        if encoded_bytes != manifest.total_bytes:
            raise ProtocolViolation(f"{encoded_bytes} encoded bytes for a full version of {manifest.total_bytes}")
        self.manifest = manifest
        self._buffer: np.ndarray | None = (pool or BufferPool()).take(encoded_bytes)
        self._hashes = _RunningHashes(manifest)
        self._received = 0
        self._awaits_resend = False
        self._lock = threading.Lock()

    @property
    def received(self) -> int:
        """Bytes that arrived, verified and in order: where a cut stream goes on."""
        return self._received

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self._received == self.manifest.total_bytes

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
            if offset < 0 or size == 0 or end > self.manifest.total_bytes:
                raise ProtocolViolation(
                    f"a chunk of {size} bytes at {offset}, of {self.manifest.total_bytes} bytes in all"
                )
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
        self._hashes.update(self._buffer.data, offset, end)
        self._received = end
        self._awaits_resend = False

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

    def finish(self) -> StagedWeights:
        """The verified version; ends the assembly.

        Raises ProtocolViolation when bytes are missing. Raises CorruptData naming the tensors whose xxh3-128 is not the
        manifest's; all chunks being sound, the sender's bytes do not fit its manifest, and it starts again from byte 0.
        """
        with self._lock:
            if self._buffer is None or not self.complete:
                raise ProtocolViolation(f"the version ends after {self._received} of {self.manifest.total_bytes} bytes")
            wrong = self._hashes.mismatches
            if wrong:
                self._received = 0
                self._hashes = _RunningHashes(self.manifest)
                more = f" and {len(wrong) - NAMED_TENSORS} more" if len(wrong) > NAMED_TENSORS else ""
                raise CorruptData(
                    f"not what the manifest says: {', '.join(map(repr, wrong[:NAMED_TENSORS]))}{more}", resume_at=0
                )
            staged = StagedWeights(self.manifest, tensor_views(self.manifest, torch.from_numpy(self._buffer)))
            self._buffer = None
            return staged

    def close(self) -> None:
        """Gives its memory up; further chunks are refused."""
        with self._lock:
            self._buffer = None


class _RunningHashes:
    """Hashes the tensors as their bytes arrive, while these are still in the processor's cache."""

    def __init__(self, manifest: Manifest) -> None:
        self.mismatches: list[str] = []
        self._entries = manifest.tensors
        self._index = 0
        self._state = xxhash.xxh3_128()
        self.update(memoryview(b""), 0, 0)

    def update(self, data: memoryview, start: int, stop: int) -> None:
        """Goes on with bytes `start` to `stop` of the version, which directly follow the last ones."""
        position = start
        while self._index < len(self._entries):
            entry = self._entries[self._index]
            end = entry.offset + entry.length
            upto = min(end, stop)
            self._state.update(data[position:upto])
            position = upto
            if position < end:
                return
            if self._state.digest() != entry.xxh3:
                self.mismatches.append(entry.name)
            self._state.reset()
            self._index += 1
