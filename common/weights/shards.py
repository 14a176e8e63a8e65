"""The sender's side of a push: the bytes of a version, cut into checksummed chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import xxhash


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A piece of the encoded bytes."""

    offset: int
    """Position of the first byte in the encoded bytes."""
    xxh3: int
    """xxh3-64 (seed 0) of `data`."""
    data: memoryview
    """The bytes, in the memory of the tensor they were cut from."""


def chunks(data: torch.Tensor, start: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Cuts `data` (uint8 `[n]`, contiguous, on the CPU) from byte `start` on, without copying it.

    Lazy: a chunk is hashed when it is asked for, just before it is sent, so that it is read from memory once. `data`
    must not change until the last chunk is sent. Raises ValueError for a start or size that cuts nothing sensible.
    """
    total = data.numel()
    if not 0 <= start <= total or chunk_bytes < 1:
        raise ValueError(f"cannot cut {total} bytes from {start} on into chunks of {chunk_bytes}")
    return _cut(data.numpy().data, start, chunk_bytes)


def _cut(view: memoryview, start: int, chunk_bytes: int) -> Iterator[Chunk]:
    for offset in range(start, len(view), chunk_bytes):
        piece = view[offset : offset + chunk_bytes]
        yield Chunk(offset, xxhash.xxh3_64_intdigest(piece), piece)
