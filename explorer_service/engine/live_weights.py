"""The weights that rollouts run on: checking new ones, swapping them in, and hashing what is then live."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.errors import ManifestMismatch
from common.models.causal_lm import load_rollout_state, rollout_state
from common.weights.finite import check_finite
from common.weights.loading import with_hashes
from common.weights.manifest import DTYPE_NAMES, Manifest, build_manifest

_SHOWN = 3


class LiveWeights:
    """The model's weights, as the layout names them. Checks may run in any thread, `swap` only in the model's."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        self.layout: Manifest = build_manifest(rollout_state(model, dtype))

    def check_layout(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises ManifestMismatch unless names, dtypes and shapes are the layout's."""
        expected = {entry.name: (entry.dtype, entry.shape) for entry in self.layout.tensors}
        given = {name: (DTYPE_NAMES.get(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
        missing = sorted(expected.keys() - given.keys())
        unknown = sorted(given.keys() - expected.keys())
        if missing or unknown:
            raise ManifestMismatch(f"weights lack tensors {missing[:_SHOWN]} and have unknown ones {unknown[:_SHOWN]}")
        for name in tensors:
            if given[name] != expected[name]:
                raise ManifestMismatch(f"tensor {name!r} is {given[name]}, the model has {expected[name]}")

    @staticmethod
    def check_content(tensors: Mapping[str, torch.Tensor]) -> str:
        """The manifest hash of these tensors, which are fit to be swapped in. Raises NonFiniteWeights."""
        check_finite(tensors)
        return build_manifest(tensors).manifest_hash

    def swap(self, tensors: Mapping[str, torch.Tensor], checked_hash: str) -> None:
        """Copies checked tensors over the live ones, in place, and hashes what is live then.

        Raises ManifestMismatch when that is not what was checked: somebody wrote into the tensors meanwhile. Any error
        leaves the weights torn: the engine must not go on after one.
        """
        self.layout = with_hashes(self.layout, load_rollout_state(self._model, tensors))
        if self.layout.manifest_hash != checked_hash:
            raise ManifestMismatch(f"live weights hash to {self.layout.manifest_hash}, checked was {checked_hash}")
