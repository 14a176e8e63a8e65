"""Builds the parts that a `taskset` section names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from common.config.explorer import TasksetConfig
from common.errors import ConfigError, TandemError
from explorer_service.rewards import REWARDS, Reward, Scorer
from explorer_service.tasksets import TASKSETS, Taskset
from explorer_service.workflows import WORKFLOWS, Workflow

Part = TypeVar("Part")


def build_taskset(config: TasksetConfig) -> Taskset:
    """The taskset. Raises ConfigError for an unknown name, options that it does not take, or what it finds wrong."""
    return _call(TASKSETS.get(config.name), (), config.options, "taskset.options")


def build_workflow(config: TasksetConfig) -> Workflow:
    """The workflow with its reward. Raises ConfigError for unknown names and options that they do not take."""
    factory = WORKFLOWS.get(config.workflow)
    return _call(factory, (build_scorer(config),), config.workflow_options, "taskset.workflow_options")


def build_scorer(config: TasksetConfig) -> Scorer:
    """The reward, ready to be called. Raises ConfigError for an unknown name and options that it does not take."""
    reward = REWARDS.get(config.reward)
    if inspect.isclass(reward):
        build = cast("Callable[..., Reward]", reward)
        return Scorer(_call(build, (), config.reward_options, "taskset.reward_options"), {})
    _check_arguments(reward, (None, ""), config.reward_options, "taskset.reward_options")
    return Scorer(reward, config.reward_options)


def _call(factory: Callable[..., Part], positional: tuple[Any, ...], options: Mapping[str, Any], key: str) -> Part:
    _check_arguments(factory, positional, options, key)
    try:
        return factory(*positional, **options)
    except TandemError:
        raise
    except Exception as error:
        # Any error of the user's own part, or an option of the wrong type: the configuration cannot work.
        message = f"{key}: {_name(factory)} failed with {dict(options)}: {type(error).__name__}: {error}"
        raise ConfigError(message) from error


def _check_arguments(
    function: Callable[..., Any], positional: tuple[Any, ...], options: Mapping[str, Any], key: str
) -> None:
    try:
        signature = inspect.signature(function)
        signature.bind(*positional, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {dict(options)} does not fit {_name(function)}: {error}") from error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
