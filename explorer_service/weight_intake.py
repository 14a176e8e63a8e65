"""Versions of the weights on their way in: admitted, verified, staged beside the live ones, applied or superseded.

A version is live only after the engine has swapped it in and the hash of what is live then is the promised one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from common.changes import Changes
from common.checkpoint import leases
from common.checkpoint.manifest_file import verify
from common.checkpoint.paths import resolve_under
from common.checkpoint.weights_file import read_weights
from common.config.root import TandemConfig
from common.errors import ManifestMismatch, NonFiniteWeights, ProtocolViolation, ShuttingDown, StaleEpoch, StaleVersion
from common.sync.events import WeightsStaged
from common.weights.finite import check_finite
from common.weights.manifest import DTYPES, Manifest, build_manifest
from common.weights.receive import WeightReceiver
from common.weights.version import NEVER_APPLIED, PolicyVersion
from explorer_service.engine.base import RolloutEngine
from explorer_service.kept_weights import KeptWeights
from explorer_service.spool_thread import SpoolThread

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class StagedVersion:
    """A version that is complete and verified."""

    version: PolicyVersion
    tensors: Mapping[str, torch.Tensor]
    receive_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a version."""

    version: PolicyVersion
    """The version itself, or the newer one that took its place."""
    applied: bool
    receive_seconds: float = 0.0
    apply_seconds: float = 0.0


class WeightIntake:
    """Takes versions in, and knows which one is live."""

    def __init__(
        self,
        config: TandemConfig,
        engine: RolloutEngine,
        spool: SpoolThread,
        changes: Changes,
        on_staged: Callable[[WeightsStaged], None],
        kept: KeptWeights | None = None,
    ) -> None:
        """With `kept`, for a deterministic run, what is live survives a restart, and a version is known by its step alone."""
        self.live = PolicyVersion(0, 0)
        """What rollouts run on; (0, 0) before the first."""
        self.receiver = WeightReceiver(
            max_tensors=config.limits.manifest_tensors,
            max_bytes=config.limits.weights_bytes,
            layout_hash=engine.layout_hash,
        )
        self._root = config.checkpoint_root
        self._engine = engine
        self._layout = engine.layout
        self._spool = spool
        self.changes = changes
        self._on_staged = on_staged
        self._kept = kept
        self._staged: StagedVersion | None = None
        self._last_apply = (0.0, 0.0)
        self._closed = False

    async def take_up_kept(self) -> None:
        """Applies what was live before a restart. Raises CheckpointInvalid, StorageFailed, or what the engine does."""
        loaded = await asyncio.to_thread(self._kept.load) if self._kept is not None else None
        if loaded is None:
            return
        version, tensors = loaded
        live_hash = await self._engine.apply(tensors, *version.order)
        self.live = PolicyVersion(*version.order, live_hash)
        log.info("weights_kept", epoch=version.run_epoch, step=version.step, manifest=live_hash[:12])

    async def admit(self, version: PolicyVersion) -> bool:
        """Whether the version must be brought here; False when it is live or staged already.

        Raises StaleEpoch or StaleVersion for one that is behind, ManifestMismatch for other weights of the same step.
        """
        seen = self._spool.counters.run_epoch
        if version.run_epoch == 0:
            raise ProtocolViolation("run epochs start at 1")
        if version.run_epoch < seen:
            raise StaleEpoch(
                f"run epoch {version.run_epoch}, but {seen} was seen", epoch=version.run_epoch, newest=seen
            )
        known = self._staged.version if self._staged is not None else self.live
        if self._kept is not None and known != NEVER_APPLIED and version.step <= known.step:
            if version.step == known.step and version.manifest_hash not in {"", known.manifest_hash}:
                raise ManifestMismatch(
                    f"this run is not deterministic: version {_shown(version)} is {version.manifest_hash}, and "
                    f"{_shown(known)} was {known.manifest_hash}"
                )
            return False
        if version.order < self.live.order:
            raise StaleVersion(f"version {_shown(version)} was offered, {_shown(self.live)} is live")
        if version.order == known.order and version.manifest_hash not in {"", known.manifest_hash}:
            raise ManifestMismatch(
                f"two sets of weights claim to be version {_shown(version)}: {version.manifest_hash} is offered, "
                f"{known.manifest_hash} is here"
            )
        return version.order > known.order

    async def stage_received(self, version: PolicyVersion, began: float) -> None:
        """The receiver has all bytes: verifies and stages them. Raises CorruptData or NonFiniteWeights."""
        staged = await asyncio.to_thread(self.receiver.finish)
        if staged.not_finite:
            raise NonFiniteWeights(f"tensor {staged.not_finite!r} holds a NaN or an infinity", tensor=staged.not_finite)
        await self._stage(StagedVersion(version, staged.tensors, time.monotonic() - began))

    async def stage_from_disk(self, version: PolicyVersion, relative: str) -> PolicyVersion:
        """Reads, verifies and stages the weights of a checkpoint's folder; returns the version with its hash.

        Raises UnsafePath, CheckpointInvalid, ManifestMismatch or NonFiniteWeights.
        """
        began = time.monotonic()
        folder = await asyncio.to_thread(resolve_under, self._root, relative)
        manifest, tensors = await asyncio.to_thread(self._read, folder, version)
        if version.manifest_hash not in {"", manifest.manifest_hash}:
            raise ManifestMismatch(
                f"{relative} holds weights {manifest.manifest_hash}, and was announced as {version.manifest_hash}"
            )
        found = PolicyVersion(version.run_epoch, version.step, manifest.manifest_hash)
        await self._stage(StagedVersion(found, tensors, time.monotonic() - began))
        return found

    async def swap_in(self, epoch: int, step: int) -> PolicyVersion:
        """Applies the staged version, and returns it: this one, or a newer one that was staged since it was ordered.

        Raises ManifestMismatch when what is live then is not what was promised.
        """
        staged = self._staged
        if staged is None or staged.version.order < (epoch, step):
            raise RuntimeError(f"version {(epoch, step)} is not staged")
        began = time.monotonic()
        version = staged.version
        live_hash = await self._engine.apply(
            staged.tensors, version.run_epoch, version.step, checked_hash=version.manifest_hash
        )
        if live_hash != version.manifest_hash:
            raise ManifestMismatch(
                f"after applying version {_shown(version)} the live weights hash to {live_hash}, "
                f"not {version.manifest_hash}"
            )
        if self._kept is not None:
            await asyncio.to_thread(self._kept.save, version, staged.tensors)
        self._last_apply = (staged.receive_seconds, time.monotonic() - began)
        self.live = version
        if self._staged is staged:
            self._staged = None
        log.info("weights_applied", epoch=version.run_epoch, step=version.step, manifest=live_hash[:12])
        self.changes.notify()
        return version

    def outcome_of(self, order: tuple[int, int]) -> Outcome | None:
        """What became of the version of this (run epoch, step); None while it waits.

        Raises ShuttingDown when it will wait in vain.
        """
        if self.live.order == order:
            return Outcome(self.live, True, *self._last_apply)
        if self._kept is not None and self.live != NEVER_APPLIED and self.live.step == order[1]:
            return Outcome(PolicyVersion(*order, self.live.manifest_hash), True, *self._last_apply)
        newest = self._staged.version if self._staged is not None else self.live
        if newest.order > order or (self._kept is not None and self.live.step > order[1]):
            return Outcome(newest, False)
        if self._closed:
            raise ShuttingDown("the explorer ends")
        return None

    def close(self) -> None:
        """The explorer ends, and applies nothing more: who waits for an outcome is told so."""
        self._closed = True
        self.changes.notify()

    async def _stage(self, staged: StagedVersion) -> None:
        # Only now: an epoch is committed for good, so a version that is refused must not bring one in.
        await self._spool.call(self._spool.counters.observe_epoch, staged.version.run_epoch)
        newest = self._staged.version if self._staged is not None else self.live
        if staged.version.order <= newest.order:
            return
        self._staged = staged
        log.debug("weights_staged", epoch=staged.version.run_epoch, step=staged.version.step)
        self._on_staged(WeightsStaged(staged.version.run_epoch, staged.version.step))
        self.changes.notify()

    def _read(self, folder: Path, version: PolicyVersion) -> tuple[Manifest, dict[str, torch.Tensor]]:
        with leases.hold(folder) as held:
            # A promised hash is compared with what was read; without one the files are.
            step = verify(held, contents=not version.manifest_hash).step
            if step != version.step:
                raise ManifestMismatch(f"the checkpoint is of step {step}, and was announced as {_shown(version)}")
            _, tensors = read_weights(held)
            cast = _in_layout(tensors, self._layout)
        check_finite(cast)
        return build_manifest(cast), cast


def _in_layout(tensors: Mapping[str, torch.Tensor], layout: Manifest) -> dict[str, torch.Tensor]:
    """Copies of the tensors in the engine's dtypes: a full checkpoint holds master weights."""
    expected = {entry.name: entry for entry in layout.tensors}
    if expected.keys() != tensors.keys():
        missing = sorted(expected.keys() - tensors.keys())[:3]
        extra = sorted(tensors.keys() - expected.keys())[:3]
        raise ManifestMismatch(f"the checkpoint is of another model: it lacks {missing}, and has {extra} beside")
    for name, entry in expected.items():
        if tuple(tensors[name].shape) != entry.shape:
            raise ManifestMismatch(f"{name} has shape {tuple(tensors[name].shape)}, ours {entry.shape}")
    return {name: tensors[name].to(DTYPES[entry.dtype], copy=True) for name, entry in expected.items()}


def _shown(version: PolicyVersion) -> str:
    return f"{version.step} of epoch {version.run_epoch}"
