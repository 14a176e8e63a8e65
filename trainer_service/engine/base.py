"""The protocol of train engines, and its value types.

Shape letters: `N` sequences, `T` tokens of all sequences together, `R` tokens after the prompts, `G` groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from common.weights.manifest import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """What one step trains on: ragged, packed, on the CPU."""

    tokens: torch.Tensor
    """int32 `[T]`."""
    token_offsets: torch.Tensor
    """int64 `[N + 1]`: sequence i is `tokens[token_offsets[i]:token_offsets[i + 1]]`."""
    prompt_lengths: torch.Tensor
    """int64 `[N]`."""
    action_mask: torch.Tensor
    """bool `[R]`: tokens that the policy sampled."""
    logprobs: torch.Tensor
    """float32 `[R]`: behaviour logprobs; zeros for sft."""
    rewards: torch.Tensor
    """float32 `[N]`."""
    group_index: torch.Tensor
    """int64 `[N]`: which group a sequence belongs to, 0 to G - 1."""
    temperature: float = 1.0
    """Of the sampling: logprobs are compared on the same scaled logits."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a train step did."""

    applied: bool
    """False when a non-finite loss or gradient made it skip the update."""
    metrics: Mapping[str, float]
    """`loss/...`, `grad/norm`, `lr`, `parity/max_logprob_diff`, `ratio/clip_fraction`, `train/tokens`, ..."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightsSnapshot:
    """One version of the weights, copied off the training tensors: later steps do not change it."""

    manifest: Manifest
    """Names, dtypes, shapes, offsets, hashes."""
    data: torch.Tensor
    """uint8 `[manifest.total_bytes]` on the CPU: the tensors at their offsets."""


class EngineCapture(Protocol):
    """The state of an engine at one moment."""

    def write(self, folder: Path, *, hf_layout: bool) -> None:
        """Writes into an existing, empty folder; may be called in any thread.

        The files: `model.safetensors` (master weights, names as in the published manifests), `optimizer.safetensors`,
        `engine.json`; with `hf_layout` also `config.json` and the tokenizer's files, so that `from_pretrained` opens
        the folder.
        """


class TrainEngine(Protocol):
    """Holds the model and the optimizer. Methods block: the trainer calls them in one worker thread."""

    @property
    def layout(self) -> Manifest:
        """Manifest of the exported weights (hashes of the current ones)."""

    def train_step(self, batch: TrainBatch) -> StepResult:
        """Advantages, loss, gradients, update. Raises TrainingDiverged after too many skipped steps in a row."""

    def export_weights(self) -> WeightsSnapshot:
        """Copies the weights, in the rollout dtype."""

    def capture(self) -> EngineCapture:
        """Copies weights, optimizer and RNG, so that they can be written while training goes on."""

    def load(self, folder: Path) -> None:
        """Restores what a capture wrote, bit by bit. Raises CheckpointInvalid."""
