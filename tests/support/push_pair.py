"""A publisher and an explorer's servicer over a real socket, around a rollout engine without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import torch

from common.changes import Changes
from common.config.root import TandemConfig
from common.monitor.monitor import Monitor
from common.rpc.channel import open_channel
from common.rpc.server import RpcServer
from common.status import StatusBoard
from common.sync.events import WeightsStaged
from common.weights.manifest import Manifest, build_manifest, tensor_bytes
from explorer_service.server import SERVICE, ExplorerServicer, add_explorer_servicer
from explorer_service.spool_thread import SpoolThread
from explorer_service.weight_intake import WeightIntake
from protos.tandem.v1 import explorer_pb2
from tests.support.engines import ScriptedRolloutEngine
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.publish.publication import Delivery
from trainer_service.publish.shards import ShardPublisher


def push_config(root: Path, **sync: Any) -> TandemConfig:
    """Small chunks, short waits."""
    return TandemConfig.model_validate(
        {
            "run": {"root": root},
            "model": {"path": "unused"},
            "sync": {"chunk_bytes": 4096, "timeout": 20, **sync},
            "taskset": {"name": "digit_skills"},
        }
    )


def snapshot_of(tensors: Mapping[str, torch.Tensor]) -> WeightsSnapshot:
    """A copy of these tensors, as an engine exports it."""
    manifest = build_manifest(tensors)
    parts = [tensor_bytes(tensors[entry.name]) for entry in manifest.tensors]
    return WeightsSnapshot(manifest, torch.cat(parts))


class ReceivingExplorer:
    """The receiving half of an explorer; swaps each version in as soon as it is staged, unless `hold` is set."""

    def __init__(self, config: TandemConfig, engine: ScriptedRolloutEngine) -> None:
        self.engine = engine
        self.hold = False
        self.changes = Changes()
        self._config = config
        self._spool = SpoolThread()
        self._swaps: set[asyncio.Task[Any]] = set()
        self._status: StatusBoard[int] = StatusBoard(explorer_pb2.EXPLORER_STATE_EXPLORING)
        self._servicer = ExplorerServicer(
            config=config, status=self._status, monitor=Monitor([]), stop=lambda reason, finished: None
        )
        self._server = RpcServer("127.0.0.1:0", SERVICE, config.limits)

    async def start(self, path: Path) -> str:
        await self._spool.open(path, "run", "explorer")
        self.weights = WeightIntake(self._config, self.engine, self._spool, self.changes, self._staged)
        self._servicer.parts = SimpleNamespace(weights=self.weights)  # type: ignore[assignment]
        return await self._server.start(lambda server: add_explorer_servicer(self._servicer, server))

    async def close(self) -> None:
        for task in self._swaps:
            task.cancel()
        await self._server.stop(0)
        await self._spool.close()

    async def swap(self, epoch: int, step: int) -> None:
        await self.weights.swap_in(epoch, step)

    def _staged(self, event: WeightsStaged) -> None:
        if not self.hold:
            task = asyncio.create_task(self.swap(event.epoch, event.step))
            self._swaps.add(task)
            task.add_done_callback(self._swaps.discard)

    @property
    def live(self) -> Manifest:
        """The manifest of the engine's weights, hashed now."""
        return self.engine.layout


class PushPair:
    """A publisher with one explorer."""

    def __init__(self, publisher: ShardPublisher, explorer: ReceivingExplorer, channel: grpc.aio.Channel) -> None:
        self.publisher = publisher
        self.explorer = explorer
        self.channel = channel

    async def push(
        self, step: int, tensors: Mapping[str, torch.Tensor], staged: Callable[[], None] = lambda: None
    ) -> Delivery:
        """Publishes these weights as version `step`, and delivers them."""
        published = await self.publisher.prepare(step, snapshot_of(tensors))
        return await self.publisher.deliver(self.channel, "explorer", published, staged)


@asynccontextmanager
async def push_pair(root: Path, tensors: Mapping[str, torch.Tensor], **sync: Any) -> AsyncIterator[PushPair]:
    """A pair whose engine starts with these tensors' layout."""
    config = push_config(root, **sync)
    explorer = ReceivingExplorer(config, ScriptedRolloutEngine(tensors=tensors))
    address = await explorer.start(root / "spool")
    channel = open_channel(address, config.limits)
    try:
        yield PushPair(ShardPublisher(config, 1), explorer, channel)
    finally:
        await channel.close()
        await explorer.close()
