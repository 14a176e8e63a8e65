"""The receiver's side of pushes: keeps a partly received version across cut streams."""

from __future__ import annotations

import threading

from common.errors import DeltaUnusable, ManifestMismatch, ProtocolViolation
from common.weights.assembly import StagedWeights, WeightAssembly
from common.weights.buffers import BufferPool
from common.weights.delta_assembly import DeltaAssembly
from common.weights.encoding import Encoding
from common.weights.finite import check_finite
from common.weights.manifest import Manifest, validate_manifest

__all__ = ["StagedWeights", "WeightAssembly", "WeightReceiver", "check_finite"]


class WeightReceiver:
    """At most one version on its way in, in memory that is used again for the next one.

    Which versions to take (run epochs, steps) is the caller's decision, made before `offer`. Beside the live weights it
    needs one copy of them: the version on its way in, or the one that was verified last, which a delta is applied to
    in place; two while a version arrives before the staged one was dropped.
    """

    def __init__(self, *, max_tensors: int, max_bytes: int, layout_hash: str | None = None) -> None:
        """`layout_hash` is that of the weights which the engine takes; None takes any layout."""
        self._max_tensors = max_tensors
        self._max_bytes = max_bytes
        self._layout_hash = layout_hash
        self._pool = BufferPool()
        self._assembly: WeightAssembly | DeltaAssembly | None = None
        self._identity: tuple[int, int, Manifest, Encoding, str, int] | None = None
        self._lock = threading.Lock()

    def offer(
        self,
        run_epoch: int,
        step: int,
        manifest: Manifest,
        encoded_bytes: int | None = None,
        *,
        encoding: Encoding = Encoding.FULL,
        base_hash: str = "",
    ) -> int:
        """Opens a version, or goes on with it when an earlier stream of the same one was cut; returns `resume_at`.

        `base_hash` is the manifest hash of a delta's base. A partly received other version is dropped. Raises
        LimitExceeded, MalformedData, ManifestMismatch or DeltaUnusable before memory is taken, and then keeps what it
        had.
        """
        validate_manifest(manifest, max_tensors=self._max_tensors, max_bytes=self._max_bytes)
        if self._layout_hash not in {None, manifest.layout_hash}:
            raise ManifestMismatch(
                "weights of another layout: names, dtypes or shapes differ",
                expected=self._layout_hash,
                offered=manifest.layout_hash,
            )
        size = manifest.total_bytes if encoded_bytes is None else encoded_bytes
        if encoding is Encoding.FULL and size != manifest.total_bytes:
            raise ProtocolViolation(f"{size} encoded bytes for a full version of {manifest.total_bytes}")
        with self._lock:
            identity = (run_epoch, step, manifest, encoding, base_hash, size)
            if self._assembly is not None and self._identity == identity:
                return self._assembly.resume()
            delta = None
            if encoding is not Encoding.FULL:
                delta = DeltaAssembly(manifest, encoding, base_hash, size, self._pool)
            if self._assembly is not None:
                self._assembly.close()
                self._assembly = None
            self._assembly = delta or WeightAssembly(manifest, size, self._pool)
            self._identity = identity
            return 0

    @property
    def assembly(self) -> WeightAssembly | DeltaAssembly:
        """The version on its way in. A stream takes it once, after its offer, and writes to that one alone.

        So a stream whose version was replaced is told so, rather than mixing its chunks into another version.
        Raises ProtocolViolation when there is none.
        """
        assembly = self._assembly
        if assembly is None:
            raise ProtocolViolation("no version was offered")
        return assembly

    def write(self, offset: int, xxh3: int, data: bytes | memoryview) -> bool:
        """`WeightAssembly.write` of the version on its way in."""
        return self.assembly.write(offset, xxh3, data)

    @property
    def received(self) -> int:
        """Bytes of the version on its way in; 0 when there is none."""
        assembly = self._assembly
        return 0 if assembly is None else assembly.received

    def finish(self) -> StagedWeights:
        """`finish` of the version on its way in, which is then no longer on its way; nor is a delta that is of no use."""
        assembly = self.assembly
        try:
            staged = assembly.finish()
        except DeltaUnusable:
            self._forget(assembly)
            raise
        self._forget(assembly)
        return staged

    def drop(self) -> None:
        """Forgets the version on its way in, if there is one."""
        with self._lock:
            if self._assembly is not None:
                self._assembly.close()
                self._assembly = None

    def _forget(self, assembly: WeightAssembly | DeltaAssembly) -> None:
        with self._lock:
            if self._assembly is assembly:
                self._assembly = None
