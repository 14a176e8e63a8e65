"""From plain values to models; what pydantic says becomes one ConfigError in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from common.config.base import Section
from common.config.keys import suggest
from common.config.root import TandemConfig
from common.config.security import SecurityConfig
from common.errors import ConfigError

Model = TypeVar("Model", bound=Section)

_SHOWN = 120
"""Characters of a wrong value in a message."""


def validate(raw: Mapping[str, Any], *, where: str = "", origins: Mapping[str, str] | None = None) -> TandemConfig:
    """The checked configuration.

    `where` is put before each message (a stage, say); `origins` says for a dotted key what set it. Raises one
    ConfigError with a line for each problem: the key, its value and what is allowed.
    """
    return _validated(TandemConfig, raw, where, origins or {})


def validate_security(raw: Mapping[str, Any], origins: Mapping[str, str]) -> SecurityConfig:
    """Section `security` alone, for who only calls; whatever else stands there is not looked at."""
    alone = {key: value for key, value in raw.items() if key == "security"}
    return _validated(_SecurityAlone, alone, "", origins).security


class _SecurityAlone(Section):
    """A configuration of which one section counts."""

    security: SecurityConfig = Field(default_factory=SecurityConfig)


def _validated(model: type[Model], raw: Mapping[str, Any], where: str, origins: Mapping[str, str]) -> Model:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [where + _explain(detail, origins) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from error


def _explain(detail: ErrorDetails, origins: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    origin = _origin(key, origins)
    if detail["type"] == "extra_forbidden":
        hint = suggest(".".join(part for part in detail["loc"] if isinstance(part, str)), TandemConfig)
        return f"unknown key `{key}`{origin}" + (f"; {hint}" if hint else "")
    if detail["type"] == "missing":
        return f"`{key}` is missing{origin}"
    says = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("String should", "should")
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        says = "should hold keys"
    if detail["type"] == "value_error" and isinstance(detail["input"], Mapping):
        return f"`{key}`{origin}: {says}" if key else says
    value = repr(detail["input"])
    if len(value) > _SHOWN:
        value = value[:_SHOWN] + "…"
    return f"`{key}`: {value} is not allowed{origin}: it {says}"


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """What set a key, or something below it."""
    for dotted, origin in origins.items():
        if dotted == key or dotted.startswith(f"{key}."):
            return f" (from {origin})"
    return ""
