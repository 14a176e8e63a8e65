"""How a service opens its port, and how a caller opens a connection: plain or TLS, with or without a token."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from common.config.security import Role, SecurityConfig
from common.rpc.authorization import Gatekeeper
from common.rpc.options import Options
from common.rpc.tls_files import ANY_SERVICE, SERVER_NAMES, TlsMaterial, watched_tls
from common.rpc.tokens import OwnToken


class ServerSecurity:
    """What one service asks of its callers."""

    def __init__(self, security: SecurityConfig, role: Role) -> None:
        """`role` is the service's own. Raises ConfigError for certificates, keys or tokens that cannot be used."""
        self.reflection = security.reflection
        self.gate = Gatekeeper(security) if security.asks else None
        """None: nobody is asked."""
        self._mutual = security.mutual
        self._tls = watched_tls(security, role, own_needed=True) if security.ca is not None else None

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Binds the address, and returns the port. Raises RuntimeError as gRPC does when it cannot be bound."""
        if self._tls is None:
            return int(server.add_insecure_port(address))
        tls = self._tls
        served = tls.current()

        def newest() -> grpc.ServerCertificateConfiguration | None:
            # gRPC asks at each handshake. Streams that are open stay on the certificate that they began with.
            nonlocal served
            material = tls.current()
            if material is served:
                return None
            served = material
            return _configuration(material)

        credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(served),
            newest,  # type: ignore[arg-type] # None says that nothing has changed; the stubs do not know
            require_client_authentication=self._mutual,
        )
        return int(server.add_secure_port(address, credentials))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and whom: what a connection is opened with."""

    security: SecurityConfig
    own: Role
    peer: Role | None = None
    """None: either service."""


class CallerCredentials:
    """What a caller shows, and what he demands of the server."""

    def __init__(self, caller: Caller) -> None:
        """Raises ConfigError for certificates, keys or tokens that cannot be used."""
        security = caller.security
        self._token = OwnToken(security, caller.own)
        self._tls = watched_tls(security, caller.own, own_needed=security.mutual) if security.ca is not None else None
        by_role = self._tls is not None and security.server_names == "role"
        name = SERVER_NAMES[caller.peer] if caller.peer is not None else ANY_SERVICE
        self.options: Options = [("grpc.ssl_target_name_override", name)] if by_role else []

    @property
    def plain(self) -> bool:
        """Whether there is neither TLS nor a token."""
        return self._tls is None and not self._token.metadata

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """To be sent with each call."""
        return self._token.metadata

    @property
    def material(self) -> TlsMaterial | None:
        """The newest certificates; None without TLS. The same object as long as they have not changed."""
        return self._tls.current() if self._tls is not None else None


def channel_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """As gRPC wants them."""
    key, chain = material.own or (None, None)
    return grpc.ssl_channel_credentials(material.ca, key, chain)


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    if material.own is None:
        raise RuntimeError("a server has a certificate of its own")
    return grpc.ssl_server_certificate_configuration([material.own], material.ca)
