"""AdamW, its learning rate schedule, and the global gradient norm."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from common.config.algorithm import OptimizerConfig
from common.errors import ConfigError


class Schedule:
    """The learning rate of each train step: linear warm-up, then constant, linear or cosine.

    With `w` warm-up steps, the step after t done ones has lr · (t + 1) / w while t < w; after that the decay's progress
    is (t - w) / (total - w), so that `min_lr_ratio` is reached after the last step. Raises ConfigError where a decay
    has no end.
    """

    def __init__(self, config: OptimizerConfig, total_steps: int | None) -> None:
        if config.schedule != "constant":
            if total_steps is None:
                raise ConfigError(
                    f"algorithm.optimizer.schedule: {config.schedule} needs `trainer.total_steps`; "
                    "without it only `constant` is possible"
                )
            if total_steps <= config.warmup_steps:
                raise ConfigError(
                    f"algorithm.optimizer.warmup_steps: {config.warmup_steps} leaves nothing of the {total_steps} "
                    f"steps of `trainer.total_steps` for the {config.schedule} decay"
                )
        self._config = config
        self._total = total_steps

    def rate(self, step: int) -> float:
        """The learning rate of the step that comes after `step` done ones."""
        config = self._config
        if step < config.warmup_steps:
            return config.lr * (step + 1) / config.warmup_steps
        if config.schedule == "constant" or self._total is None:
            return config.lr
        progress = min((step - config.warmup_steps) / (self._total - config.warmup_steps), 1.0)
        left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * left)


def build_optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; only matrices are decayed. One fused kernel does a group's update."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = all(parameter.device.type in {"cpu", "cuda"} for parameter in trainable)
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=fused
    )


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All gradients that exist."""
    return [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def clip_gradients(grads: list[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scales gradients of this global norm, on the device, by min(1, max_norm / norm)."""
    torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1.0))
