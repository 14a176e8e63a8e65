"""Bearer tokens: which role one stands for, and the one that we show. A token is never logged, shown or kept in clear."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path

from common.config.security import Role, SecurityConfig
from common.errors import ConfigError
from common.rpc.watched_files import WatchedFiles

TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
"""What RFC 6750 allows in a header; shorter ones could be guessed."""
MAX_TOKENS = 64
"""Of one role: the current one, and those that are on their way in or out."""

Digests = tuple[tuple[bytes, Role], ...]


class TokenTable:
    """The tokens that a service accepts, of all roles that have any."""

    def __init__(self, security: SecurityConfig, environ: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError for a file or variable that is missing or holds no token."""
        in_files = {role: path for role in Role if (path := security.of(role).token_file) is not None}
        in_variables = {role: name for role in Role if (name := security.of(role).token_env) is not None}
        fixed = {role: _of_variable(name, environ) for role, name in in_variables.items()}
        roles = tuple(in_files)

        def make(contents: list[bytes]) -> Digests:
            read = {
                role: parse_tokens(content, str(in_files[role])) for role, content in zip(roles, contents, strict=True)
            }
            return _digests({**fixed, **read})

        self._digests = WatchedFiles([in_files[role] for role in roles], make)

    def role_of(self, token: str) -> Role | None:
        """The role that the token stands for. Takes as long for a wrong one as for a right one."""
        presented = _digest(token)
        found = None
        for digest, role in self._digests.current():
            if hmac.compare_digest(digest, presented):
                found = role
        return found


class OwnToken:
    """The token that a role shows when it calls."""

    def __init__(self, security: SecurityConfig, role: Role, environ: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError for a file or variable that is missing or holds no token, and where only others have one."""
        config = security.of(role)
        if security.asks_for_tokens and not config.has_token:
            raise ConfigError(
                f"services ask for tokens, and the {role} has none: set `security.{role}.token_file` or `.token_env`"
            )
        paths: list[Path] = []
        given: tuple[str, ...] = ()
        if config.token_file is not None:
            paths = [config.token_file]
        elif config.token_env is not None:
            given = _of_variable(config.token_env, environ)

        def make(contents: list[bytes]) -> tuple[tuple[str, str], ...]:
            tokens = parse_tokens(contents[0], str(paths[0])) if contents else given
            return (("authorization", f"Bearer {tokens[0]}"),) if tokens else ()

        self._metadata = WatchedFiles(paths, make)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """To be sent with each call; empty for a role that has no token."""
        return self._metadata.current()


def parse_tokens(content: bytes, where: str) -> tuple[str, ...]:
    """The tokens in a file or variable. Raises ConfigError, which names the place and never what stands there."""
    try:
        tokens = tuple(content.decode("ascii").split())
    except UnicodeDecodeError:
        tokens = ()
    if not 0 < len(tokens) <= MAX_TOKENS or not all(TOKEN.fullmatch(token) for token in tokens):
        raise ConfigError(
            f"{where}: should hold tokens, one a line, each of 16 to 512 letters, digits or ._~+/=- "
            "(`openssl rand -hex 32` makes one)"
        )
    return tokens


def _of_variable(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    if name not in environ:
        raise ConfigError(f"the environment variable {name} is not set; it should hold a token")
    return parse_tokens(environ[name].encode(errors="surrogateescape"), f"the environment variable {name}")


def _digests(tokens: Mapping[Role, tuple[str, ...]]) -> Digests:
    found: dict[bytes, Role] = {}
    for role, texts in tokens.items():
        for text in texts:
            if found.setdefault(_digest(text), role) is not role:
                raise ConfigError(f"{role} has a token that another role has too: it could not say who calls")
    return tuple(found.items())


def _digest(token: str) -> bytes:
    """Digests are of one length, whatever was sent."""
    return hashlib.sha256(token.encode(errors="replace")).digest()
