"""The weights that the push benchmarks move, the engine that takes them, and memory peaks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import structlog
import torch

from common.config.root import TandemConfig
from common.weights.loading import copy_hashed, with_hashes
from common.weights.manifest import Manifest, build_manifest

TENSORS = 200
EMBEDDING_SHARE = 4
"""The embedding is a quarter of the bytes, the other tensors are equal."""
WIDTH = 1024
CHUNK_BYTES = 2 << 20


def shapes(megabytes: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of bf16 tensors, so many MiB together."""
    rows = (megabytes << 20) // 2 // WIDTH
    embedding = rows // EMBEDDING_SHARE
    others = TENSORS - 1
    each, left = divmod(rows - embedding, others)
    found = {"embedding": (embedding, WIDTH)}
    found |= {f"layers.{index:03}.weight": (each + (index < left), WIDTH) for index in range(others)}
    return found


def made_weights(megabytes: int) -> dict[str, torch.Tensor]:
    """Normally distributed, standard deviation 0.02, as models start; a megabyte of it again and again."""
    tile = torch.randn(1 << 19, generator=torch.Generator().manual_seed(11)).mul_(0.02).bfloat16()
    return {
        name: tile.repeat(-(-rows * width // tile.numel()))[: rows * width].reshape(rows, width)
        for name, (rows, width) in shapes(megabytes).items()
    }


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The bf16 words of a .npy file as 200 tensors, the embedding as above."""
    words = torch.from_numpy(np.load(path).view(np.int16)).view(torch.bfloat16)
    embedding = words.numel() // EMBEDDING_SHARE
    bounds = [0, embedding, *np.linspace(embedding, words.numel(), TENSORS).astype(int)[1:].tolist()]
    return {f"{index:03}": words[bounds[index] : bounds[index + 1]] for index in range(TENSORS)}


def weights_of(source: str) -> dict[str, torch.Tensor]:
    """Made ones for a number of MiB, those of a file for a path."""
    return made_weights(int(source)) if source.isdecimal() else read_weights(Path(source))


def load(live: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies every tensor over the live one, as `load_state_dict` does."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            live[name].copy_(tensor)


def settings(root: Path, **sync: object) -> TandemConfig:
    """The defaults, below `root`."""
    return TandemConfig.model_validate(
        {"run": {"root": root}, "model": {"path": "unused"}, "taskset": {"name": "digit_skills"}, "sync": sync}
    )


def quiet() -> None:
    """Standard output carries results alone."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def forget_peak() -> int:
    """Starts the measurement of the peak; returns the bytes of memory that are in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes of memory that were in use since."""
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


class LoadingEngine:
    """Of a rollout engine only what takes weights: copies them over the live ones, and hashes what is live then."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.live = {name: tensor.clone() for name, tensor in tensors.items()}
        self.layout: Manifest = build_manifest(self.live)
        self.layout_hash = self.layout.layout_hash
        self.version = (0, 0)

    def swap(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """Returns the manifest hash of the live weights."""
        hashes = {name: copy_hashed(self.live[name], tensor) for name, tensor in tensors.items()}
        return with_hashes(self.layout, hashes).manifest_hash
