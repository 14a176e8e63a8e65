"""Copies of the weights for publication, in buffers that are used again once nobody holds them."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from common.models.causal_lm import rollout_state
from common.weights.manifest import (
    DTYPES,
    Manifest,
    TensorEntry,
    build_manifest,
    content_hash,
    tensor_bytes,
)
from trainer_service.engine.base import WeightsSnapshot


def _references(arrays: list[npt.NDArray[np.uint8]], place: int) -> int:
    return sys.getrefcount(arrays[place])


_UNSHARED = _references([np.empty(0, dtype=np.uint8)], 0)
"""References to an array that only its list holds, as this interpreter counts them."""


class BufferPool:
    """Byte buffers of one size. A buffer is given out again only when nothing refers to its memory any more.

    Fresh pages cost ten times what the copy into used ones does. Every tensor, view and array over a buffer keeps a
    reference to its numpy array, so the array's reference count says whether anybody can still read it.
    """

    def __init__(self, size: int, *, pinned: bool) -> None:
        self._size = size
        self._pinned = pinned
        self._arrays: list[npt.NDArray[np.uint8]] = []

    def take(self) -> torch.Tensor:
        """A uint8 `[size]` tensor on the CPU, contents undefined."""
        for place in range(len(self._arrays)):
            if _references(self._arrays, place) == _UNSHARED:
                return torch.from_numpy(self._arrays[place])
        if self._pinned:
            self._arrays.append(torch.empty(self._size, dtype=torch.uint8, pin_memory=True).numpy())
        else:
            self._arrays.append(np.empty(self._size, dtype=np.uint8))
        return torch.from_numpy(self._arrays[-1])

    def __len__(self) -> int:
        return len(self._arrays)


class WeightExporter:
    """Copies a model's weights, in the rollout dtype, into one buffer on the CPU.

    On CUDA the copies run on a stream of their own, after what the training stream has queued, into pinned memory.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        layout = build_manifest(rollout_state(model, dtype))
        self._entries = layout.tensors
        self._layout_hash = layout.layout_hash
        self._total = layout.total_bytes
        self._model = model
        device = next(model.parameters()).device
        self._stream = torch.cuda.Stream(device=device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pool = BufferPool(self._total, pinned=self._stream is not None)

    def export(self) -> WeightsSnapshot:
        """A snapshot that later training does not change."""
        data = self._pool.take()
        sources = self._model.state_dict(keep_vars=True)
        with torch.no_grad():
            if self._stream is None:
                self._copy(sources, data)
            else:
                self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
                with torch.cuda.stream(self._stream):
                    self._copy(sources, data)
                self._stream.synchronize()
        entries = tuple(
            dataclasses.replace(entry, xxh3=xxhash.xxh3_128_digest(_part(data, entry).numpy().data))
            for entry in self._entries
        )
        return WeightsSnapshot(Manifest(entries, self._total, content_hash(entries), self._layout_hash), data)

    def _copy(self, sources: dict[str, torch.Tensor], data: torch.Tensor) -> None:
        for entry in self._entries:
            part = _part(data, entry)
            source = sources[entry.name]
            dtype = DTYPES[entry.dtype]
            if entry.offset % dtype.itemsize == 0:
                # On CUDA the cast happens there, so that the copy moves the smaller type and stays asynchronous.
                moved = source if source.device.type == "cpu" else source.to(dtype)
                part.view(dtype).view(entry.shape).copy_(moved, non_blocking=True)
            else:
                part.copy_(tensor_bytes(source.to("cpu", dtype)))


def _part(data: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    return data[entry.offset : entry.offset + entry.length]
