"""The live weights on disk, for a deterministic run: an explorer that was killed goes on with those that it had.

The trainer need not have them any more, and a window must be made on one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from common.checkpoint.store import CheckpointStore
from common.checkpoint.weights_file import WEIGHTS_NAME, read_weights
from common.weights.version import PolicyVersion


class KeptWeights:
    """The version that was applied last, in a folder of one explorer's own."""

    def __init__(self, folder: Path) -> None:
        self._store = CheckpointStore(folder, keep=1)

    def load(self) -> tuple[PolicyVersion, dict[str, torch.Tensor]] | None:
        """The version and its tensors, verified; None before the first. Blocks. Raises CheckpointInvalid or StorageFailed."""
        self._store.sweep()
        newest = self._store.newest()
        if newest is None:
            return None
        manifest, tensors = read_weights(newest.path)
        # Copies: the folder is deleted when the next version is there.
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        return PolicyVersion(newest.manifest.run_epoch, newest.manifest.step, manifest.manifest_hash), copies

    def save(self, version: PolicyVersion, tensors: Mapping[str, torch.Tensor]) -> None:
        """Durably puts the version in place of the one before. Blocks. Raises StorageFailed."""
        self._store.write(
            version.step, version.run_epoch, lambda folder: save_file(dict(tensors), folder / WEIGHTS_NAME), {}
        )
        self._store.prune()
