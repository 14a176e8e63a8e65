"""Asks both services how they are, a few times a second at most, and follows the trainer's metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import grpc

from common.cli.run_view import RunView
from common.config.root import LimitsConfig
from common.config.security import Role, SecurityConfig
from common.errors import MalformedData
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller
from common.rpc.stubs import explorer_stub, trainer_stub
from protos.tandem.v1 import explorer_pb2, trainer_pb2

POLL_SECONDS = 1.0
"""Between two questions to a service: two small calls a second cost the training nothing that could be measured."""
CALL_SECONDS = 5.0
"""Deadline of a question."""
RECONNECT_SECONDS = 0.5
"""Before the metrics are asked for again: the trainer's server is gone for a moment between two stages."""


class Watcher:
    """Keeps a view up to date until it is cancelled. A service that does not answer is shown, never an error here."""

    def __init__(
        self, view: RunView, trainer: str, explorer: str, limits: LimitsConfig, security: SecurityConfig
    ) -> None:
        """`trainer` and `explorer` are host:port."""
        self._view = view
        self._trainer = trainer
        self._explorer = explorer
        self._limits = limits
        self._security = security

    async def run(self) -> None:
        """Until cancelled."""
        async with (
            open_channel(
                self._trainer, self._limits, Caller(self._security, Role.OPERATOR, Role.TRAINER)
            ) as to_trainer,
            open_channel(
                self._explorer, self._limits, Caller(self._security, Role.OPERATOR, Role.EXPLORER)
            ) as to_explorer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._repeat(lambda: self._ask_trainer(to_trainer)))
            tasks.create_task(self._repeat(lambda: self._ask_explorer(to_explorer)))
            tasks.create_task(self._follow_metrics(to_trainer))

    async def _repeat(self, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            # The view knows when a service answered last, and shows one that has fallen silent.
            with contextlib.suppress(grpc.aio.AioRpcError, MalformedData):
                await ask()
            await asyncio.sleep(POLL_SECONDS)

    async def _ask_trainer(self, channel: grpc.aio.Channel) -> None:
        request = trainer_pb2.TrainerServiceGetStatusRequest()
        self._view.take_trainer(await trainer_stub(channel).GetStatus(request, timeout=CALL_SECONDS))

    async def _ask_explorer(self, channel: grpc.aio.Channel) -> None:
        request = explorer_pb2.ExplorerServiceGetStatusRequest()
        self._view.take_explorer(await explorer_stub(channel).GetStatus(request, timeout=CALL_SECONDS))

    async def _follow_metrics(self, channel: grpc.aio.Channel) -> None:
        """The stream has no deadline: it lasts as long as the stage, and keepalive pings find a dead connection."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for record in trainer_stub(channel).WatchMetrics(trainer_pb2.WatchMetricsRequest()):
                    self._view.take_metrics(record.step, record.source, record.values)
            await asyncio.sleep(RECONNECT_SECONDS)
