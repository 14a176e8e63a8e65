"""The gate against weights with NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from common.errors import NonFiniteWeights
from common.weights.buffers import ByteArray

INFINITY_BITS: Mapping[str, tuple[type[np.signedinteger], type[np.unsignedinteger], int]] = {
    "F64": (np.int64, np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.int32, np.uint32, 0x7F80_0000),
    "F16": (np.int16, np.uint16, 0x7C00),
    "BF16": (np.int16, np.uint16, 0x7F80),
}
"""Integers as wide as the numbers of a dtype, and the bits of its infinity: everything from there up is infinity or NaN."""


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises NonFiniteWeights naming the first tensor with a NaN or an infinity; integers and bools always pass."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        # One pass and no temporary; both ends are NaN if any value is. isfinite(tensor).all() takes ten times as long.
        low, high = torch.aminmax(tensor)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise NonFiniteWeights(f"tensor {name!r} holds a NaN or an infinity", tensor=name)


def finite_bytes(raw: ByteArray, dtype: str) -> bool:
    """Whether the numbers in these bytes, of a dtype by safetensors' name, are all finite; other kinds always are.

    Two passes over integers, which for bf16 in the cache take a third of the time of `torch.aminmax`.
    """
    if dtype not in INFINITY_BITS or raw.size == 0:
        return True
    signed, unsigned, infinity = INFINITY_BITS[dtype]
    # Read as signed, the positive numbers are the largest; as unsigned, the negative ones.
    if raw.view(signed).max() >= infinity:
        return False
    sign = 1 << (8 * np.dtype(unsigned).itemsize - 1)
    return bool(raw.view(unsigned).max() < sign | infinity)
