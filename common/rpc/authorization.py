"""Who may call what: one table, and the check of each call against it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from common.config.security import Role, SecurityConfig
from common.errors import PermissionDenied, Unauthenticated
from common.rpc.tls_files import certificate_role
from common.rpc.tokens import TokenTable

HEALTH = "/grpc.health.v1.Health/"
"""Asked by whatever watches over processes, which has neither role nor token. It says no more than SERVING or not."""

ANY = frozenset(Role)
TRAINER = frozenset({Role.TRAINER})
EXPLORER = frozenset({Role.EXPLORER})
OPERATOR = frozenset({Role.OPERATOR})

ALLOWED: Mapping[str, frozenset[Role]] = {
    "/tandem.v1.ExplorerService/GetStatus": TRAINER | OPERATOR,
    # An operator may only `peek`: the servicer looks at `calling_role`.
    "/tandem.v1.ExplorerService/StreamExperiences": TRAINER | OPERATOR,
    "/tandem.v1.ExplorerService/PushWeights": TRAINER,
    "/tandem.v1.ExplorerService/NotifyCheckpoint": TRAINER,
    "/tandem.v1.ExplorerService/Evaluate": TRAINER | OPERATOR,
    "/tandem.v1.ExplorerService/Drain": TRAINER | OPERATOR,
    "/tandem.v1.ExplorerService/Stop": TRAINER | OPERATOR,
    "/tandem.v1.TrainerService/GetStatus": EXPLORER | OPERATOR,
    "/tandem.v1.TrainerService/WatchMetrics": OPERATOR,
    "/tandem.v1.TrainerService/RegisterExplorer": EXPLORER,
    "/tandem.v1.TrainerService/RequestSync": EXPLORER,
    "/tandem.v1.TrainerService/SaveCheckpoint": OPERATOR,
    "/tandem.v1.TrainerService/Pause": OPERATOR,
    "/tandem.v1.TrainerService/Resume": OPERATOR,
    "/tandem.v1.TrainerService/Stop": OPERATOR,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": ANY,
    "/grpc.channelz.v1.Channelz/GetTopChannels": ANY,
    "/grpc.channelz.v1.Channelz/GetServers": ANY,
    "/grpc.channelz.v1.Channelz/GetServer": ANY,
    "/grpc.channelz.v1.Channelz/GetServerSockets": ANY,
    "/grpc.channelz.v1.Channelz/GetChannel": ANY,
    "/grpc.channelz.v1.Channelz/GetSubchannel": ANY,
    "/grpc.channelz.v1.Channelz/GetSocket": ANY,
}
"""Every method that the services have, health aside. What does not stand here, nobody may call."""

_caller: ContextVar[Role | None] = ContextVar("caller", default=None)


def calling_role() -> Role | None:
    """The role of whoever made the call that is being answered; None where nobody is asked."""
    return _caller.get()


class Gatekeeper:
    """Checks each call of a service that asks who calls."""

    def __init__(self, security: SecurityConfig) -> None:
        """Raises ConfigError for tokens that cannot be read."""
        self._by_certificate = security.asks_for_certificates
        self._tokens = TokenTable(security) if security.asks_for_tokens else None

    def admit(self, method: str, context: Any) -> None:
        """Raises Unauthenticated for a caller who does not prove a role, PermissionDenied for one of the wrong role.

        Where both are configured a caller needs both, certificate and token, of one and the same role.
        """
        roles = set()
        if self._by_certificate:
            roles.add(_role_of_certificate(context))
        if self._tokens is not None:
            roles.add(_role_of_token(context, self._tokens))
        if len(roles) != 1:
            raise Unauthenticated("certificate and token are of different roles")
        (role,) = roles
        allowed = ALLOWED.get(method, frozenset())
        if role not in allowed:
            raise PermissionDenied(f"this method is not for the role {role}", method=method, role=role)
        _caller.set(role)


def _role_of_certificate(context: Any) -> Role:
    # `peer_uri`, not `x509_subject_alternative_name`: that one mixes URIs with names of other kinds.
    uris = [uri.decode(errors="replace") for uri in context.auth_context().get("peer_uri", ())]
    role = certificate_role(uris)
    if role is None:
        raise Unauthenticated("the certificate says no role: it needs one alternative name spiffe://tandem/ROLE")
    return role


def _role_of_token(context: Any, tokens: TokenTable) -> Role:
    given = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    if len(given) != 1 or not isinstance(given[0], str):
        raise Unauthenticated("this service asks for a token: metadata `authorization: Bearer TOKEN`")
    scheme, _, token = given[0].partition(" ")
    role = tokens.role_of(token.strip()) if scheme.lower() == "bearer" else None
    if role is None:
        raise Unauthenticated("the token is not known here")
    return role
