"""Sync method `checkpoint`: weights written once to shared storage, and a NotifyCheckpoint to every explorer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc

from common.checkpoint import leases
from common.checkpoint.store import CheckpointStore, SavedCheckpoint
from common.checkpoint.weights_file import write_weights
from common.config.root import TandemConfig
from common.errors import ManifestMismatch, ProtocolViolation
from common.rpc.errors import from_rpc_error
from common.rpc.stubs import explorer_stub
from common.weights.version import PolicyVersion
from common.wire.versions import version_from_proto, version_to_proto
from protos.tandem.v1 import explorer_pb2
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.publish.publication import Delivery, Published

PUBLISHED_FOLDER = "published"
"""Below the checkpoints' root; holds weights alone, which no trainer resumes from."""

SavingAt = Callable[[int], "asyncio.Future[SavedCheckpoint] | None"]
"""The save of this step that is in progress or done, if there is one."""


class CheckpointPublisher:
    """Writes versions that no save writes anyway, and tells explorers where they lie."""

    def __init__(self, config: TandemConfig, run_epoch: int, saving_at: SavingAt) -> None:
        self._run_epoch = run_epoch
        self._timeout = config.sync.timeout
        self._root = config.checkpoint_root
        self._saving_at = saving_at
        self._store = CheckpointStore(self._root / PUBLISHED_FOLDER, config.checkpoint.keep)
        # Steps can be faster than the disk, and two that write at once would delete the same old version.
        self._writing = asyncio.Lock()

    async def prepare(self, step: int, snapshot: WeightsSnapshot) -> Published:
        """A save at this step is the publication; else writes the weights."""
        version = PolicyVersion(self._run_epoch, step, snapshot.manifest.manifest_hash)
        save = self._saving_at(step)
        if save is not None:
            return Published(version, None, (await asyncio.shield(save)).relative)
        async with self._writing:
            saved = await asyncio.to_thread(self._write, version, snapshot)
        return Published(version, None, f"{PUBLISHED_FOLDER}/{saved.relative}")

    async def deliver(
        self, channel: grpc.aio.Channel, peer: str, published: Published, staged: Callable[[], None]
    ) -> Delivery:
        """Tells the explorer the path; holds the folder against deletion until it is applied."""
        if published.path is None:
            raise ProtocolViolation(f"version {published.version.step} has no path")
        stub = explorer_stub(channel)
        request = explorer_pb2.NotifyCheckpointRequest(version=version_to_proto(published.version), path=published.path)
        staged()
        with leases.hold(self._root / published.path):
            try:
                response = await stub.NotifyCheckpoint(request, timeout=self._timeout)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, peer) from error
        if response.WhichOneof("outcome") == "superseded":
            return Delivery(version_from_proto(response.superseded.by), False, 0.0, 0.0)
        applied = response.applied
        version = version_from_proto(applied.version)
        if version != published.version:
            raise ManifestMismatch(
                f"{peer} applied other weights than it was told", sent=published.version, applied=version
            )
        return Delivery(version, True, applied.receive_seconds, applied.apply_seconds)

    def _write(self, version: PolicyVersion, snapshot: WeightsSnapshot) -> SavedCheckpoint:
        def fill(folder: Path) -> None:
            write_weights(folder / "model.safetensors", snapshot.manifest, snapshot.data)

        saved = self._store.write(version.step, version.run_epoch, fill, {"manifest_hash": version.manifest_hash})
        self._store.prune()
        return saved
