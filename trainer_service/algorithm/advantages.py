"""Advantages: how the rewards of a group become one weight a sequence.

Shape letters: `N` sequences, `G` groups.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.config.algorithm import AlgorithmConfig
from common.registry import Registry

STD_EPSILON = 1e-4
"""Added to a group's standard deviation; TRL's value (`GRPOTrainer`), which keeps a nearly uniform group small."""


Advantage = Callable[[torch.Tensor, torch.Tensor, AlgorithmConfig], torch.Tensor]
"""Rewards float `[N]`, the group of each sequence int64 `[N]` (0 to G - 1) and the configuration to advantages float32
`[N]`. A group's result depends on its own rewards alone, so a NaN stays in its group."""

ADVANTAGES: Registry[Advantage] = Registry("advantage")


@ADVANTAGES.register("group_normalized")
def group_normalized(rewards: torch.Tensor, group_index: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:  # noqa: ARG001 - Advantage's
    """(r - mean) / (std + 1e-4) within the group: GRPO, https://arxiv.org/abs/2402.03300, equation 3.

    `std` is the sample standard deviation (divisor n - 1), as in TRL and verl. A group of one, or of equal rewards, has
    advantage 0.
    """
    centered, members = _centered(rewards, group_index)
    squares = torch.zeros_like(members).index_add_(0, group_index, centered.square())
    deviation = (squares / (members - 1).clamp(min=1)).sqrt()
    return (centered / (deviation[group_index] + STD_EPSILON)).float()


@ADVANTAGES.register("group_centered")
def group_centered(rewards: torch.Tensor, group_index: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:  # noqa: ARG001 - Advantage's
    """Reward - mean within the group: Dr. GRPO, https://arxiv.org/abs/2503.20783."""
    return _centered(rewards, group_index)[0].float()


@ADVANTAGES.register("reward")
def reward(rewards: torch.Tensor, group_index: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:  # noqa: ARG001 - Advantage's
    """The reward itself, without a baseline."""
    return rewards.float()


@ADVANTAGES.register("none")
def none(rewards: torch.Tensor, group_index: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:  # noqa: ARG001 - Advantage's
    """1 for every sequence: examples to imitate have no rewards."""
    return torch.ones_like(rewards, dtype=torch.float32)


def _centered(rewards: torch.Tensor, group_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards less their group's mean, float64 `[N]`, and the groups' sizes, float64 `[G]`.

    In float64 the mean of equal float32 rewards is exact, so their advantage is exactly 0.
    """
    values = rewards.double()
    groups = int(group_index.max()) + 1 if group_index.numel() else 0
    members = torch.bincount(group_index, minlength=groups).double()
    sums = torch.zeros_like(members).index_add_(0, group_index, values)
    return values - (sums / members)[group_index], members
