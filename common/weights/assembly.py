"""One version on its way in: chunks are verified, put in place, and checked tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from common.errors import CorruptData, ProtocolViolation
from common.weights.buffers import BufferPool, ByteArray
from common.weights.collector import ChunkCollector
from common.weights.manifest import Manifest, tensor_views
from common.weights.running_checks import RunningChecks

NAMED_TENSORS = 5
"""How many corrupt tensors an error names."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedWeights:
    """A version that is complete and verified, and not applied yet."""

    manifest: Manifest
    """What it is."""
    tensors: Mapping[str, torch.Tensor]
    """CPU tensors by name, views into one buffer, which is used again for a later version once all of them are gone."""
    not_finite: str = ""
    """The first tensor with a NaN or an infinity, which nobody wants to run on."""


class WeightAssembly(ChunkCollector):
    """A version that comes in full, in the memory that it stays in; of a validated manifest."""

    def __init__(self, manifest: Manifest, encoded_bytes: int, pool: BufferPool | None = None) -> None:
        """Takes the memory. Raises ProtocolViolation when `encoded_bytes` is not what the manifest needs."""
        if encoded_bytes != manifest.total_bytes:
            raise ProtocolViolation(f"{encoded_bytes} encoded bytes for a full version of {manifest.total_bytes}")
        self.manifest = manifest
        self._pool = pool or BufferPool()
        self._checks = RunningChecks(manifest)
        super().__init__(self._pool.take(encoded_bytes))

    def _stored(self, buffer: ByteArray, offset: int, end: int) -> None:
        self._checks.update(buffer, offset, end)

    def finish(self) -> StagedWeights:
        """The verified version; ends the assembly.

        Raises ProtocolViolation when bytes are missing. Raises CorruptData naming the tensors whose xxh3-128 is not the
        manifest's; all chunks being sound, the sender's bytes do not fit its manifest, and it starts again from byte 0.
        """
        with self._lock:
            if self._buffer is None or not self.complete:
                raise ProtocolViolation(f"the version ends after {self._received} of {self.manifest.total_bytes} bytes")
            wrong = self._checks.mismatches
            if wrong:
                self._received = 0
                self._checks = RunningChecks(self.manifest)
                raise CorruptData(not_as_promised(wrong), resume_at=0)
            self._pool.mark(self._buffer, self.manifest.manifest_hash)
            tensors = tensor_views(self.manifest, torch.from_numpy(self._buffer))
            self._buffer = None
            return StagedWeights(self.manifest, tensors, self._checks.not_finite)


def not_as_promised(names: list[str]) -> str:
    """An error's text about tensors whose bytes are not those of the manifest."""
    more = f" and {len(names) - NAMED_TENSORS} more" if len(names) > NAMED_TENSORS else ""
    return f"not what the manifest says: {', '.join(map(repr, names[:NAMED_TENSORS]))}{more}"
