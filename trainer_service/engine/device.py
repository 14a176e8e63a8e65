"""Where the trainer computes, and the process-wide settings that go with it."""

from __future__ import annotations

import os
from typing import Any

import torch

from common.config.model import DeviceConfig
from common.errors import ConfigError


def choose_device(config: DeviceConfig) -> torch.device:
    """The device that the configuration means. Raises ConfigError where it asks for CUDA and there is none."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("trainer.device: cuda, but torch sees no CUDA device; allowed here are auto and cpu")
    if config.device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def prepare_device(config: DeviceConfig, device: torch.device, *, deterministic: bool) -> None:
    """Applies threads, TF32 and determinism to this process."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if device.type == "cuda":
        precision = "tf32" if config.tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
    if deterministic:
        # cuBLAS is deterministic only with a fixed workspace, and reads this when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)


def prepare_model(model: Any, *, checkpointing: bool) -> None:
    """Switches dropout off, for ratios need one policy and not a random part of it, and checkpointing as asked."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    model.eval()
    if checkpointing:
        # The name that replaces `gradient_checkpointing_enable` in transformers 6; older releases lack it.
        new_name = getattr(model, "activation_checkpointing_enable", None)
        (new_name or model.gradient_checkpointing_enable)({"use_reentrant": False})
        # transformers checkpoints in training mode only; without dropout the modes compute the same.
        model.train()
