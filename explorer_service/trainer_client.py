"""Calls of the trainer: to register with it, and to ask it for a sync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import structlog

from common.changes import Changes
from common.config.root import TandemConfig
from common.config.security import Role
from common.errors import ConfigError, PeerUnavailable, ShuttingDown, Unauthenticated, WaitTimedOut
from common.rpc.backoff import pauses
from common.rpc.channel import QUICK_CALL_SECONDS, open_channel
from common.rpc.credentials import Caller
from common.rpc.errors import from_rpc_error
from common.rpc.stubs import trainer_stub
from common.status import StatusBoard
from common.weights.version import PolicyVersion
from common.wire.versions import version_to_proto
from protos.tandem.v1 import trainer_pb2

log = structlog.get_logger(__name__)

NOT_YET = (PeerUnavailable, WaitTimedOut, ShuttingDown, Unauthenticated)
"""The trainer is not there yet, or not ready, or tokens are being replaced."""
REGISTER_PAUSE_SECONDS = 5.0
"""After a registration the trainer dials back; when it does not, it is asked again."""


class TrainerClient:
    """The trainer, as the explorer's peer."""

    def __init__(self, config: TandemConfig, address: str, status: StatusBoard[int], changes: Changes) -> None:
        self.address = address
        self._config = config
        self._status = status
        self._changes = changes
        self._channel = open_channel(address, config.limits, Caller(config.security, Role.EXPLORER, Role.TRAINER))
        self._stub = trainer_stub(self._channel)
        self.reached = False
        """It has answered a call."""

    async def keep_registered(self, own_address: str, connected: Callable[[], bool]) -> None:
        """Registers whenever no trainer's stream is open, until it is cancelled. Raises what the trainer refuses for."""
        request = trainer_pb2.RegisterExplorerRequest(
            explorer_id=self._config.explorer.id, address=own_address, run_name=self._config.run.name
        )
        while True:
            await self._changes.until(lambda: not connected())
            await self._register(request)
            try:
                async with asyncio.timeout(REGISTER_PAUSE_SECONDS):
                    await self._changes.until(connected)
            except TimeoutError:
                log.info("registering_again", trainer=self.address, reason="it has not dialled back")

    async def request_sync(self, have: PolicyVersion) -> bool:
        """explorer_driven: True when a newer version was applied here, False when there is none."""
        request = trainer_pb2.RequestSyncRequest(explorer_id=self._config.explorer.id, have=version_to_proto(have))
        try:
            response = await self._stub.RequestSync(request, timeout=self._config.sync.timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"trainer {self.address}") from error
        self.reached = True
        return response.newer

    async def ask_for_a_sign(self) -> None:
        """Returns when the trainer's event loop has answered. Raises WaitTimedOut where it does not, and any TandemError."""
        request = trainer_pb2.TrainerServiceGetStatusRequest()
        try:
            await self._stub.GetStatus(request, timeout=QUICK_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"trainer {self.address}") from error
        self.reached = True

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def _register(self, request: trainer_pb2.RegisterExplorerRequest) -> None:
        for pause in pauses():
            try:
                await self._stub.RegisterExplorer(request, timeout=QUICK_CALL_SECONDS)
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc_error(rpc_error, f"trainer {self.address}")
                if not isinstance(error, NOT_YET):
                    raise error from rpc_error
                if isinstance(error, Unauthenticated):
                    log.warning("not_registered", trainer=self.address, error=error.message)
            else:
                self.reached = True
                log.info("registered", trainer=self.address)
                return
            async with self._status.waiting(f"trainer {self.address} to be ready", None):
                await asyncio.sleep(pause)


class SyncRequests:
    """RequestSync in the words of the explorer's loop: patient while the trainer is away."""

    def __init__(self, client: TrainerClient | None, timeout: float, live: Callable[[], PolicyVersion]) -> None:
        self._client = client
        self._timeout = timeout
        self._live = live

    async def __call__(self) -> bool:
        """Asks until there is an answer; raises WaitTimedOut after `sync.timeout` seconds without one."""
        if self._client is None:
            raise ConfigError("style explorer_driven needs `explorer.trainer`: the explorer asks the trainer")
        deadline = time.monotonic() + self._timeout
        for pause in pauses():
            before = self._live()
            try:
                newer = await self._client.request_sync(before)
            except NOT_YET as error:
                if self._live().order > before.order:
                    return True
                if time.monotonic() + pause > deadline:
                    raise WaitTimedOut(
                        f"no answer to RequestSync for {self._timeout:g} seconds: {error.message}"
                    ) from error
            else:
                # An answer may belong to the call before, whose version was live when this one began.
                return newer and self._live().order > before.order
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")
