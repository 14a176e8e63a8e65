"""Section `security`: who may call whom, and how they prove who they are."""

from __future__ import annotations

import enum
import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from common.config.base import Section

_OF_OUR_KEYS = "TANDEM__"
"""Variables that begin so set keys of the configuration, which is shown and written to files."""


class Role(enum.StrEnum):
    """Who somebody is on the wire."""

    TRAINER = "trainer"
    EXPLORER = "explorer"
    OPERATOR = "operator"
    """A person, or a program that looks after a run: `tandem status`, `tandem up`, grpcurl."""


class RoleConfig(Section):
    """What one role shows to the others: a certificate, a token, or both. The secrets themselves never stand here."""

    cert: Path | None = Field(None, description="PEM: its certificate, then those between it and the CA.")
    key: Path | None = Field(None, description="PEM: the certificate's private key, without a passphrase.")
    token_file: Path | None = Field(
        None, description="File of its bearer tokens, one a line: the first is used for calls, all are accepted."
    )
    token_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Environment variable of its bearer tokens, in place of `token_file`.",
    )

    @field_validator("token_env")
    @classmethod
    def _no_key_of_ours(cls, value: str | None) -> str | None:
        if value is not None and value.upper().startswith(_OF_OUR_KEYS):
            raise ValueError(f"should not begin with {_OF_OUR_KEYS}: such a variable sets a key of the configuration")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("`cert` and `key` belong together")
        if self.token_file is not None and self.token_env is not None:
            raise ValueError("give `token_file` or `token_env`, not both")
        return self

    @property
    def has_token(self) -> bool:
        """Whether a token is configured."""
        return self.token_file is not None or self.token_env is not None


class SecurityConfig(Section):
    """TLS, tokens and roles; see docs/security.md. Without any of it anybody who reaches a service may call it."""

    ca: Path | None = Field(
        None,
        description="PEM: whom to trust. Set: every connection is TLS, and each side needs a certificate of its role.",
    )
    mutual: bool = Field(True, description="With `ca`: who calls must show a certificate too; it says the role.")
    server_names: Literal["role", "host"] = Field(
        "role",
        description="What a server's certificate must be made out to: `role`: trainer.tandem or explorer.tandem, "
        "wherever it runs; `host`: the host that was dialled.",
    )
    insecure: bool = Field(
        False, description="Listen beyond loopback though nobody is asked who he is: the network itself is closed."
    )
    reflection: bool = Field(True, description="Serve reflection, which grpcurl needs to list and describe.")
    trainer: RoleConfig = Field(default_factory=RoleConfig)
    explorer: RoleConfig = Field(default_factory=RoleConfig)
    operator: RoleConfig = Field(default_factory=RoleConfig)

    @model_validator(mode="after")
    def _certificates_need_somebody_to_trust(self) -> Self:
        for role in Role:
            if self.of(role).cert is not None and self.ca is None:
                raise ValueError(f"`{role}.cert` without `ca`: set `ca` to switch TLS on")
        return self

    def of(self, role: Role) -> RoleConfig:
        """The section of a role."""
        match role:
            case Role.TRAINER:
                return self.trainer
            case Role.EXPLORER:
                return self.explorer
            case Role.OPERATOR:
                return self.operator

    @property
    def asks_for_certificates(self) -> bool:
        """Whether callers are known by their certificate."""
        return self.ca is not None and self.mutual

    @property
    def asks_for_tokens(self) -> bool:
        """Whether callers are known by a token."""
        return any(self.of(role).has_token for role in Role)

    @property
    def asks(self) -> bool:
        """Whether callers must prove who they are."""
        return self.asks_for_certificates or self.asks_for_tokens


def is_loopback(address: str) -> bool:
    """Whether host:port is reached from this machine alone. A name is not looked up: only `localhost` counts."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_door(key: str, address: str, security: SecurityConfig) -> str | None:
    """Why a service may not listen there, and what to do; None where it may. `key` is the address's, as people know it."""
    if security.asks or security.insecure or is_loopback(address):
        return None
    return (
        f"`{key}` {address} is not loopback, and nobody who calls is asked who he is: set `security.ca` and certificates "
        "(`tandem certs DIR` makes a set), or tokens (`security.trainer.token_file`, ...), or, where the network itself is "
        "closed, say `security.insecure: true`"
    )
