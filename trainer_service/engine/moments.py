"""AdamW's state as named tensors: `PARAMETER/KEY`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.errors import CheckpointInvalid
from trainer_service.engine.state import OPTIMIZER_FILE

PARTS = ("step", "exp_avg", "exp_avg_sq")


def copy_moments(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the optimizer's tensors, on the CPU. A parameter that was never updated has none."""
    return {
        f"{name}/{key}": value.detach().to("cpu", copy=True)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def check_moments(tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
    """Whether these are AdamW's tensors for some of these parameters. Raises CheckpointInvalid."""
    for key in tensors:
        name, _, part = key.rpartition("/")
        if name not in parameters or part not in PARTS:
            raise CheckpointInvalid(f"{OPTIMIZER_FILE}: tensor {key!r} belongs to no trained parameter")
        shape = torch.Size() if part == "step" else parameters[name].shape
        if tensors[key].shape != shape:
            raise CheckpointInvalid(f"{OPTIMIZER_FILE}: tensor {key!r} has shape {tuple(tensors[key].shape)}")
    for name in {key.rpartition("/")[0] for key in tensors}:
        if not all(f"{name}/{part}" in tensors for part in PARTS):
            raise CheckpointInvalid(f"{OPTIMIZER_FILE}: the moments of {name!r} are incomplete")


def restore_moments(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Puts checked tensors into AdamW; parameters without any start anew."""
    optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, part = key.rpartition("/")
        parameter = parameters[name]
        # The fused kernel keeps its step counter beside the parameter; the moments are there in any case.
        optimizer.state[parameter][part] = tensor.to(parameter.device, copy=True)
