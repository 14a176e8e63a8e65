"""The stages of a run: one configuration each, the model handed on from one to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.config.merge import at, merged
from common.config.root import TandemConfig
from common.config.validate import validate
from common.errors import ConfigError

_OF_THE_RUN = ("run", "stages", "plugins", "security", "stage_name")
"""Keys that hold for all stages."""
_MODEL_SOURCES = ("path", "architecture")


def result_folder(config: TandemConfig) -> Path:
    """Where the stage of this configuration leaves its finished model, in the Hugging Face layout."""
    return config.stage_folder / "result"


def stage_configs(config: TandemConfig) -> list[TandemConfig]:
    """The configurations of all stages, in order; without stages the configuration itself.

    A stage after the first starts from the result of the one before, unless it sets `model.path` or
    `model.architecture`. An explicit `checkpoint.root` gets one folder a stage. Raises ConfigError naming the stage.
    """
    if not config.stages:
        return [config]
    base = config.model_dump(exclude_unset=True, exclude={"stages", "stage_name"})
    results: list[TandemConfig] = []
    for position, stage in enumerate(config.stages, 1):
        name = _name(stage, position, [done.stage_name for done in results])
        previous = results[-1] if results else None
        raw = _stage_raw(base, stage, name, previous)
        results.append(validate(raw, where=f"stage {name!r}: "))
    _separate_checkpoints(results)
    return results


def explorer_stage_configs(config: TandemConfig) -> list[TandemConfig]:
    """As `stage_configs`, for an explorer, which never sees the trainer's result folders.

    It makes its model from where the first stage of the chain takes it; the layout is the same, and the weights come from
    the trainer before the first rollout. Behind a stage that trains on a file it waits for the trainer as long as it takes.
    """
    results: list[TandemConfig] = []
    for stage in stage_configs(config):
        model = stage.model
        if results and model.path == str(result_folder(results[-1])):
            before = results[-1].model
            source = {"path": before.path, "architecture": before.architecture, "tokenizer": before.tokenizer}
            model = model.model_copy(update=source)
        explorer = stage.explorer
        if results and results[-1].buffer.source == "file" and explorer.join_timeout is None:
            explorer = explorer.model_copy(update={"join_timeout": math.inf})
        results.append(stage.model_copy(update={"model": model, "explorer": explorer}))
    return results


def _name(stage: Mapping[str, Any], position: int, taken: list[str]) -> str:
    name = stage.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"stages: stage {position} needs a `name`")
    if name in taken:
        raise ConfigError(f"stages: two stages are named {name!r}; a name is a folder and must be unique")
    for key in _OF_THE_RUN:
        if key in stage:
            raise ConfigError(f"stage {name!r}: `{key}` holds for the whole run and cannot be set in a stage")
    return name


def _stage_raw(
    base: Mapping[str, Any], stage: Mapping[str, Any], name: str, previous: TandemConfig | None
) -> dict[str, Any]:
    overrides = {key: value for key, value in stage.items() if key != "name"}
    model = overrides.get("model")
    own_source = [key for key in _MODEL_SOURCES if at(overrides, ["model", key]) is not None]
    raw = dict(base)
    if own_source or previous is not None:
        raw["model"] = {key: value for key, value in base["model"].items() if key not in _MODEL_SOURCES}
    if previous is not None and not own_source:
        if previous.checkpoint.save_hf_checkpoint == "never":
            raise ConfigError(
                f"stage {name!r} starts from the result of stage {previous.stage_name!r}, which leaves none: its "
                "`checkpoint.save_hf_checkpoint` is `never`; allowed are `last` and `always`"
            )
        raw["model"] = {**raw["model"], "path": str(result_folder(previous)), "tokenizer": None}
    if "model" in overrides and model is None:
        raise ConfigError(f"stage {name!r}: `model` must hold keys")
    root = at(base, ["checkpoint", "root"])
    if root is not None:
        raw["checkpoint"] = {**base["checkpoint"], "root": Path(root) / name}
    return {**merged(raw, overrides), "stage_name": name}


def _separate_checkpoints(stages: list[TandemConfig]) -> None:
    """Two stages in one folder would resume from each other's checkpoints."""
    roots: dict[Path, str] = {}
    for stage in stages:
        root = stage.checkpoint_root.absolute()
        if root in roots:
            raise ConfigError(
                f"stage {stage.stage_name!r}: `checkpoint.root` {root} is already that of stage {roots[root]!r}"
            )
        roots[root] = stage.stage_name
