"""A version on its way in as a delta: nothing is changed before all of it is here and checked."""

from __future__ import annotations

import torch

from common.errors import DeltaUnusable, LimitExceeded, MalformedData, ProtocolViolation
from common.weights.assembly import StagedWeights, not_as_promised
from common.weights.buffers import BufferPool, ByteArray, allocate
from common.weights.collector import ChunkCollector
from common.weights.delta import apply, parse
from common.weights.delta_zstd import decompress
from common.weights.encoding import Encoding
from common.weights.manifest import Manifest, tensor_views
from common.weights.running_checks import RunningChecks


class DeltaAssembly(ChunkCollector):
    """A version that comes as a delta to the one that the pool holds; of a validated manifest."""

    def __init__(
        self, manifest: Manifest, encoding: Encoding, base_hash: str, encoded_bytes: int, pool: BufferPool
    ) -> None:
        """Takes memory for the encoded bytes. Raises DeltaUnusable when the base is not here.

        Raises LimitExceeded when there are no fewer bytes than the full version has.
        """
        if not pool.holds(base_hash):
            raise DeltaUnusable(f"the base {base_hash[:12]!r} is not here")
        if not 0 < encoded_bytes < manifest.total_bytes:
            raise LimitExceeded(f"a delta of {encoded_bytes} bytes for a version of {manifest.total_bytes}")
        self.manifest = manifest
        self.encoding = encoding
        self.base_hash = base_hash
        self._pool = pool
        super().__init__(allocate(encoded_bytes))

    def finish(self) -> StagedWeights:
        """The verified version; ends the assembly.

        Raises ProtocolViolation when bytes are missing, and DeltaUnusable when the base is gone, the delta is malformed,
        or what came of it is not what the manifest says: only the full version helps then.
        """
        with self._lock:
            if self._buffer is None or not self.complete:
                raise ProtocolViolation(f"the version ends after {self._received} of {self._total} bytes")
            encoded, self._buffer = self._buffer, None
            data = self._pool.take_holding(self.base_hash)
            if data is None:
                raise DeltaUnusable(f"the base {self.base_hash[:12]!r} is gone")
            self._apply(encoded, data)
            checks = RunningChecks(self.manifest)
            checks.update_all(data)
            if checks.mismatches:
                raise DeltaUnusable(not_as_promised(checks.mismatches))
            self._pool.mark(data, self.manifest.manifest_hash)
            tensors = tensor_views(self.manifest, torch.from_numpy(data))
            return StagedWeights(self.manifest, tensors, checks.not_finite)

    def _apply(self, encoded: ByteArray, data: ByteArray) -> None:
        try:
            if self.encoding is Encoding.DELTA_ZSTD:
                parts = decompress(encoded, self.manifest, data)
            else:
                parts = parse(encoded, self.manifest)
        except MalformedData as error:
            # Nothing was written: the base is still whole.
            self._pool.mark(data, self.base_hash)
            raise DeltaUnusable(error.message) from error
        apply(parts, data)
