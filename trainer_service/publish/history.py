"""The versions that deltas are made from, and the deltas: each is encoded once, for however many explorers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

import numpy as np

from common.weights.buffers import ByteArray
from common.weights.delta import encode, plain_bytes, sample_changes, word_count
from common.weights.delta_zstd import compress
from common.weights.version import PolicyVersion
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.publish.choice import Difference, Slowness


class VersionDelta:
    """From one version to a later one. What was made once is kept."""

    def __init__(self, base: PolicyVersion, old: WeightsSnapshot, new: WeightsSnapshot, slowness: Slowness) -> None:
        self.base = base
        self.difference: Difference | None = None
        """Estimated after `estimate`, exact after `plain`."""
        self._old = old
        self._new = new
        self._slowness = slowness
        self._plain: asyncio.Future[ByteArray | None] | None = None
        self._packed: asyncio.Future[ByteArray] | None = None

    @property
    def encoded(self) -> bool:
        """Whether the plain delta is there."""
        return self._plain is not None and self._plain.done()

    async def estimate(self) -> Difference:
        """How much differs."""
        if self.difference is None:
            changes = await asyncio.to_thread(
                sample_changes, self._old.data.numpy(), self._new.data.numpy(), self._new.manifest
            )
            self.difference = self.difference or self._difference(changes, plain_bytes(self._new.manifest, changes))
        return self.difference

    async def plain(self) -> ByteArray | None:
        """The plain delta; None where it would not be smaller than the full version."""
        if self._plain is None:
            self._plain = asyncio.ensure_future(asyncio.to_thread(self._encode))
        # Shielded: of several explorers that wait for it, one may leave.
        return await asyncio.shield(self._plain)

    async def packed(self) -> ByteArray:
        """The compressed delta; after `plain` gave one."""
        plain = await self.plain()
        if plain is None:
            raise RuntimeError("there is no delta to compress")
        if self._packed is None:
            self._packed = asyncio.ensure_future(
                asyncio.to_thread(compress, plain, self._new.manifest, self._old.data.numpy())
            )
        return await asyncio.shield(self._packed)

    @property
    def held_bytes(self) -> int:
        """Memory of the encoded bytes."""
        return sum(
            result.nbytes
            for future in (self._plain, self._packed)
            if future is not None
            and future.done()
            and not future.cancelled()
            and future.exception() is None
            and isinstance(result := future.result(), np.ndarray)
        )

    def _encode(self) -> ByteArray | None:
        began = time.monotonic()
        manifest = self._new.manifest
        encoded = encode(self._old.data.numpy(), self._new.data.numpy(), manifest)
        if encoded is not None:
            least = plain_bytes(manifest, 0)
            changes = (encoded.size - least) / max(plain_bytes(manifest, 1) - least, 1e-9)
            self.difference = self._difference(changes, encoded.size)
            self._slowness.observe(self.difference, time.monotonic() - began)
        return encoded

    def _difference(self, changes: float, size: float) -> Difference:
        return Difference(self._new.manifest.total_bytes, word_count(self._new.manifest), changes, size)


class History:
    """Earlier versions, as many as some explorer may have and memory is allowed for."""

    def __init__(self, limit_bytes: int, slowness: Slowness) -> None:
        """`limit_bytes` is of the versions before the newest, and of the deltas."""
        self._limit = limit_bytes
        self._slowness = slowness
        self._snapshots: dict[PolicyVersion, WeightsSnapshot] = {}
        self._deltas: dict[PolicyVersion, VersionDelta] = {}
        self._newest: PolicyVersion | None = None
        self._previous: PolicyVersion | None = None

    def add(self, version: PolicyVersion, snapshot: WeightsSnapshot) -> None:
        """A newer version. The one before it stays: some explorer may be about to get it."""
        self._snapshots[version] = snapshot
        self._deltas = {}
        self._previous, self._newest = self._newest, version
        self._trim()

    def retain(self, needed: Collection[PolicyVersion]) -> None:
        """Forgets what no delta will start from: neither needed, nor one of the two newest."""
        for version in [known for known in self._snapshots if known not in needed]:
            if version not in {self._newest, self._previous}:
                self._forget(version)

    def delta(self, base: PolicyVersion, version: PolicyVersion) -> VersionDelta | None:
        """The delta from `base` to the newest version; None when one of them is not (or no longer) here."""
        old, new = self._snapshots.get(base), self._snapshots.get(version)
        if version != self._newest or old is None or new is None or base == version:
            return None
        if base not in self._deltas:
            self._trim()
            self._deltas[base] = VersionDelta(base, old, new, self._slowness)
        return self._deltas[base]

    @property
    def held_bytes(self) -> int:
        """Of the versions before the newest, and of the deltas."""
        old = sum(snap.data.numel() for known, snap in self._snapshots.items() if known != self._newest)
        return old + sum(delta.held_bytes for delta in self._deltas.values())

    def _trim(self) -> None:
        while self.held_bytes > self._limit and len(self._snapshots) > 1:
            self._forget(next(iter(self._snapshots)))

    def _forget(self, version: PolicyVersion) -> None:
        del self._snapshots[version]
        self._deltas.pop(version, None)
