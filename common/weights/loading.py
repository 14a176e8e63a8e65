"""Copies weights over those of a model, and hashes what lies there then."""

from __future__ import annotations

from dataclasses import replace

import torch
import xxhash

from common.weights.manifest import Manifest, content_hash, tensor_bytes

PIECE_BYTES = 1 << 20
"""Copied, then hashed out of the processor's cache: a model need not be read from memory once more for its hash."""


def copy_hashed(target: torch.Tensor, source: torch.Tensor) -> bytes:
    """Copies one tensor over another of its shape; the xxh3-128 of the target's values, in the source's dtype, after it."""
    with torch.no_grad():
        if target.dtype != source.dtype or not (_plain(target) and _plain(source)):
            target.copy_(source)
            held = target.detach().to("cpu", source.dtype)
            return xxhash.xxh3_128_digest(tensor_bytes(held).numpy().data)
        into, out_of = tensor_bytes(target).numpy(), tensor_bytes(source).numpy()
    state = xxhash.xxh3_128()
    for start in range(0, into.size, PIECE_BYTES):
        piece = into[start : start + PIECE_BYTES]
        piece[:] = out_of[start : start + PIECE_BYTES]
        state.update(piece.data)
    return state.digest()


def with_hashes(layout: Manifest, hashes: dict[str, bytes]) -> Manifest:
    """The manifest of the same tensors with other contents."""
    entries = tuple(replace(entry, xxh3=hashes[entry.name]) for entry in layout.tensors)
    return replace(layout, tensors=entries, manifest_hash=content_hash(entries))


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
