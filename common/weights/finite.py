"""The gate against weights with NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.errors import NonFiniteWeights


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises NonFiniteWeights naming the first tensor with a NaN or an infinity; integers and bools always pass."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        # One pass and no temporary; both ends are NaN if any value is. isfinite(tensor).all() takes ten times as long.
        low, high = torch.aminmax(tensor)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise NonFiniteWeights(f"tensor {name!r} holds a NaN or an infinity", tensor=name)
