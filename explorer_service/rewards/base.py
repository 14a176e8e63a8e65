"""What a reward is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

RewardValue: TypeAlias = float | Mapping[str, float]
"""A number, or `{"reward": number, ...}` whose other entries become metrics."""
Reward: TypeAlias = Callable[..., RewardValue | Awaitable[RewardValue]]
"""`reward(task, response, **reward_options)`, plain or async."""

AnyReward = TypeVar("AnyReward", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward said of one response, checked."""

    reward: float
    """Finite, also as float32."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers by name."""


def inline(reward: AnyReward) -> AnyReward:
    """Decorator: the reward takes microseconds and cannot block, so it runs on the event loop instead of a thread."""
    reward.runs_inline = True  # type: ignore[attr-defined] # functions take attributes
    return reward


def runs_inline(reward: object) -> bool:
    """Whether `inline` marked it."""
    return getattr(reward, "runs_inline", False) is True
