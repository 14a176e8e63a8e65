"""What every section has in common."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535


def _check_address(value: str) -> str:
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match["port"]) > _MAX_PORT:
        raise ValueError("should be host:port, [IPv6]:port for an IPv6 address, with a port up to 65535")
    return value


def _check_reachable(value: str) -> str:
    if _check_address(value).endswith(":0"):
        raise ValueError("port 0 cannot be dialled; give the port that the peer listens on")
    return value


ListenAddress = Annotated[str, AfterValidator(_check_address)]
"""host:port to listen on; port 0 lets the system pick."""
PeerAddress = Annotated[str, AfterValidator(_check_reachable)]
"""host:port to dial."""


class Section(BaseModel):
    """A frozen section that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_section_is_empty(cls, raw: Any) -> Any:
        """`trainer:` with every line below it commented out is an empty section, as people mean it."""
        return {} if raw is None else raw

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python counts `true` as 1; a configuration that says so is a mistake."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = {annotation, *get_args(annotation)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError("should be a number, not a boolean")
        return value
