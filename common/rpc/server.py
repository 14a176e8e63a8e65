"""A server with health, reflection and channelz beside the service itself."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import structlog
from grpc_channelz.v1 import channelz
from grpc_channelz.v1 import channelz_pb2 as channelz_pb2_module
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.config.root import LimitsConfig
from common.errors import ConfigError
from common.rpc.credentials import ServerSecurity
from common.rpc.interceptors import CallInterceptor
from common.rpc.options import server_options

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 5.0
"""Grace for calls in progress when a server stops; compose's stop_grace_period lies well above it."""


class RpcServer:
    """One listening server of one service."""

    def __init__(
        self, address: str, service: str, limits: LimitsConfig, security: ServerSecurity | None = None
    ) -> None:
        """`address` is host:port, port 0 picks a free one; `service` the full name, as `tandem.v1.TrainerService`.

        Without `security` the port is plain, and everybody may call everything.
        """
        self._requested = address
        self._service = service
        self._security = security
        self._calls = CallInterceptor(limits.streams, security.gate if security is not None else None)
        self._server = grpc.aio.server(interceptors=[self._calls], options=server_options(limits))
        self._health = health.aio.HealthServicer()
        self.address = address

    @property
    def open_calls(self) -> int:
        """Calls in progress, health checks aside."""
        return self._calls.open_calls

    async def start(self, add_servicer: Callable[[grpc.aio.Server], None]) -> str:
        """Binds, serves, and returns the address with the port that it got. Not SERVING before `set_serving`.

        Raises ConfigError when the address cannot be bound.
        """
        add_servicer(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        channelz.add_channelz_servicer(self._server)
        if self._security is None or self._security.reflection:
            names = (
                self._service,
                health.SERVICE_NAME,
                channelz_pb2_module.DESCRIPTOR.services_by_name["Channelz"].full_name,
                reflection.SERVICE_NAME,
            )
            reflection.enable_server_reflection(names, self._server)
        await self.set_serving(serving=False)
        host, _, _ = self._requested.rpartition(":")
        try:
            port = self._bind()
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self._requested}: the port is taken, or the address is not of this machine"
            ) from error
        await self._server.start()
        self.address = f"{host}:{port}"
        log.info("listening", address=self.address, grpc_service=self._service)
        return self.address

    def _bind(self) -> int:
        if self._security is None:
            return int(self._server.add_insecure_port(self._requested))
        return self._security.add_port(self._server, self._requested)

    async def set_serving(self, *, serving: bool) -> None:
        """What health checks answer, for the server as a whole and for the service by name."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set("", status)
        await self._health.set(self._service, status)

    async def stop(self, grace: float = DRAIN_SECONDS) -> None:
        """Answers NOT_SERVING, takes no new call, and gives those in progress `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)
