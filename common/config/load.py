"""From a YAML file, the environment and the command line to a checked configuration.

Later ones win: the file, then `TANDEM__SECTION__KEY=value` in the environment, then `--set section.key=value`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.config.keys import takes_text_only, walk
from common.config.merge import at, merged
from common.config.plain_file import read_plain_file
from common.config.root import TandemConfig
from common.config.security import SecurityConfig
from common.config.stages import stage_configs
from common.config.validate import validate, validate_security
from common.config.yaml_source import MAX_BYTES, dump, parse
from common.errors import ConfigError

ENVIRONMENT_PREFIX = "TANDEM__"
"""Two underscores: single ones are part of key names."""


def load_config(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> TandemConfig:
    """The configuration of a run, its stages checked too.

    `overrides` are texts `a.b.c=value`, the value in YAML (`4`, `[a, b]`, `{k: v}`). A stage is addressed by its name:
    `stages.NAME.trainer.total_steps=5`. Raises ConfigError with a line for each problem: key, value, what is allowed.
    """
    raw, origins = _raw(path, overrides, environ)
    config = validate(raw, origins=origins)
    _refuse_shadowed(config, origins)
    stage_configs(config)
    return config


def load_security(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> SecurityConfig:
    """Section `security` alone, for who only calls: the file may be a run's whole configuration, or hold nothing else."""
    return validate_security(*_raw(path, overrides, environ))


def to_yaml(config: TandemConfig) -> str:
    """The effective configuration, defaults filled in; `load_config` reads the same back."""
    return dump(config.model_dump(mode="json"))


def _raw(
    path: Path | None, overrides: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What the sources say together, and for each key that is no file's, what set it."""
    raw = _read(path) if path is not None else {}
    origins: dict[str, str] = {}
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            dotted = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            raw = _override(raw, dotted, environ[name], f"the environment variable {name}", origins)
    for text in overrides:
        dotted, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write it as `--set section.key=value`")
        raw = _override(raw, dotted.strip(), value, f"--set {text}", origins)
    return raw, origins


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError(f"configuration {path}: does not exist")
    try:
        text = read_plain_file(path, MAX_BYTES, f"configuration {path}").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration {path}: is not UTF-8 text: {error}") from error
    raw = parse(text, f"configuration {path}")
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            f"configuration {path}: must hold sections (`model:`, `trainer:`, ...), not {type(raw).__name__}"
        )
    return raw


def _override(raw: dict[str, Any], dotted: str, text: str, origin: str, origins: dict[str, str]) -> dict[str, Any]:
    """The raw configuration with one more value in it."""
    names = dotted.split(".")
    if not all(names):
        raise ConfigError(f"{origin}: {dotted!r} is no key; write `section.key`")
    if names[0] == "stages" and len(names) > 1:
        stages, names = _stages_with(raw, names, text, origin), ["stages"]
        value: Any = stages
    else:
        value = _value(dotted, text, origin)
    origins[".".join(names)] = origin
    for length in range(1, len(names)):
        holder = at(raw, names[:length])
        if holder is not None and not isinstance(holder, Mapping):
            raise ConfigError(f"{origin}: `{'.'.join(names[:length])}` holds no keys; give it a whole value instead")
    nested: Any = value
    for name in reversed(names[1:]):
        nested = {name: nested}
    return merged(raw, {names[0]: nested})


def _stages_with(raw: dict[str, Any], names: list[str], text: str, origin: str) -> list[Any]:
    stages = raw.get("stages") or []
    known = [stage.get("name") for stage in stages if isinstance(stage, Mapping)] if isinstance(stages, list) else []
    if len(names) < 3 or names[1] not in known:  # noqa: PLR2004 - stages.NAME.key
        listed = ", ".join(str(name) for name in known) or "none"
        raise ConfigError(f"{origin}: address a stage as `stages.NAME.section.key`; stages are: {listed}")
    changed = _override({}, ".".join(names[2:]), text, origin, {})
    return [merged(stage, changed) if stage.get("name") == names[1] else stage for stage in stages]


def _value(dotted: str, text: str, origin: str) -> Any:
    value = parse(text, origin)
    fields = dict(walk(TandemConfig))
    if dotted in fields and takes_text_only(fields[dotted].annotation) and not isinstance(value, str | None):
        return text
    return value


def _refuse_shadowed(config: TandemConfig, origins: Mapping[str, str]) -> None:
    """An override that every stage replaces by a value of its own would have no effect at all."""
    if not config.stages:
        return
    for dotted, origin in origins.items():
        if dotted.split(".")[0] in ("run", "stages", "plugins"):
            continue
        if all(at(stage, dotted.split(".")) is not None for stage in config.stages):
            names = " or ".join(f"`stages.{stage.get('name')}.{dotted}`" for stage in config.stages)
            raise ConfigError(f"{origin} has no effect: every stage sets `{dotted}` itself; set {names}")
