"""Small versions of weights, laid out by hand rather than by the code under test."""

from __future__ import annotations

import torch
import xxhash

from common.weights.manifest import Manifest, TensorEntry, content_hash, layout_hash

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.uint8: "U8", torch.bool: "BOOL", torch.int64: "I64"}


def sample_tensors() -> dict[str, torch.Tensor]:
    """Several dtypes, an odd length that misaligns what follows, a scalar and an empty tensor at either end."""
    generator = torch.Generator().manual_seed(5)
    return {
        "a.empty": torch.zeros(0, 3),
        "b.bytes": torch.arange(7, dtype=torch.uint8),
        "c.weight": torch.randn(5, 11, generator=generator),
        "d.half": torch.randn(33, generator=generator).to(torch.bfloat16),
        "e.scalar": torch.tensor(-3, dtype=torch.int64),
        "f.flags": torch.tensor([True, False, True]),
        "g.empty": torch.zeros(2, 0, dtype=torch.bfloat16),
    }


def lay_out(tensors: dict[str, torch.Tensor]) -> tuple[Manifest, torch.Tensor]:
    """The manifest of these tensors in the order that they come in, and their bytes (uint8)."""
    entries, blob = [], b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = xxhash.xxh3_128_digest(raw)
        entries.append(TensorEntry(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), len(blob), len(raw), digest))
        blob += raw
    frozen = tuple(entries)
    data = torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else torch.zeros(0, dtype=torch.uint8)
    return Manifest(frozen, len(blob), content_hash(frozen), layout_hash(frozen)), data


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit (NaN included)."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.contiguous().reshape(-1).view(torch.uint8).tolist()
        == right.contiguous().reshape(-1).view(torch.uint8).tolist()
    )
