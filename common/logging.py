"""The structured log: one line an event, on standard error; readable on a terminal, JSON elsewhere.

Events are words with fields: `log.info("weights applied", version=7, seconds=0.3)`. What holds for a whole service is
bound once by `bind_context` and stands in every line.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_SECRET_KEYS = frozenset({"token", "authorization", "auth_token", "api_key", "password", "secret"})
"""Whole names: `tokens` is a count."""
_BEARER = re.compile(r"(?i)\b(bearer)\s+[^\s\"',;]+")
_REDACTED = "[redacted]"
_MAX_DEPTH = 6
"""Of nested fields; deeper ones are shown by their type."""


def configure_logging(
    level: str = "INFO",
    format: Literal["auto", "console", "json"] = "auto",  # noqa: A002 - named as the config's key
    stream: TextIO | None = None,
) -> None:
    """Sends structlog's and the standard library's logs to a stream, `sys.stderr` by default. May be called again."""
    stream = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and stream.isatty())
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        # To text here, without local variables: they may hold secrets, and must pass the redaction below.
        structlog.processors.format_exc_info,
        redact,
    ]
    render: Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer(serializer=_to_json)
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *before],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def bind_context(**fields: object) -> None:
    """Fields for every line from here on, in this task and those it starts: run, stage, service, epoch."""
    structlog.contextvars.bind_contextvars(**fields)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor: what is named like a secret, or looks like a bearer token, is never written."""
    return {key: _clean(key, value, 0) for key, value in event.items()}


def _clean(key: object, value: Any, depth: int) -> Any:
    if isinstance(key, str) and key.lower() in _SECRET_KEYS:
        return _REDACTED
    if isinstance(value, str):
        return _BEARER.sub(rf"\1 {_REDACTED}", value)
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {name: _clean(name, item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        if len(value) == 2 and isinstance(value[0], str):  # noqa: PLR2004 - a (name, value) pair of call metadata
            return [value[0], _clean(value[0], value[1], depth + 1)]
        return [_clean(None, item, depth + 1) for item in value]
    return value


def _to_json(event: Any, **_options: Any) -> str:
    """One line of valid JSON: NaN and infinity become null, what JSON does not know becomes text."""
    try:
        return json.dumps(event, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(event), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
