"""The protocol of rollout engines, and its value types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from common.config.explorer import SamplingConfig
from common.experience.experience import FloatArray, IntArray
from common.weights.manifest import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled continuation of a prompt."""

    tokens: IntArray
    """int32 `[R]`: the sampled tokens, the end token included when one ended it."""
    logprobs: FloatArray
    """float32 `[R]`: behaviour logprobs on the sampled support; greedy: of the untempered distribution."""
    oldest_version: int
    """Policy step of the first token's weights."""
    newest_version: int
    """Policy step of the last token's weights."""
    run_epoch: int
    """Run epoch of the weights."""
    truncated: bool
    """True when `max_tokens` or the context's end stopped it."""
    text: str
    """The decoded tokens, without end tokens and without the stop string."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counters since start; the caller takes differences."""

    generated_tokens: int
    """Tokens sampled."""
    decode_seconds: float
    """Seconds in which at least one sequence was being decoded."""
    running_sequences: int
    """Sequences in flight now."""


class RolloutEngine(Protocol):
    """Samples from the policy, and swaps its weights in whole between two decode steps.

    All methods are called from the event loop and never block it. An implementation fails pending calls with the error
    that broke it; it is never silently stuck.
    """

    @property
    def layout_hash(self) -> str:
        """`Manifest.layout_hash` of the weights that it takes."""

    @property
    def layout(self) -> Manifest:
        """Names, dtypes, shapes and offsets of the weights that it takes (hashes of the live weights)."""

    @property
    def version(self) -> tuple[int, int]:
        """(run epoch, policy step) of the live weights; (0, 0) before the first `apply`."""

    async def generate(
        self, prompt: Sequence[int], n: int, sampling: SamplingConfig, seed: int | None = None
    ) -> list[Completion]:
        """Samples `n` continuations of the prompt's tokens. Cancelling it frees its sequences."""

    async def apply(
        self, tensors: Mapping[str, torch.Tensor], run_epoch: int, step: int, *, checked_hash: str = ""
    ) -> str:
        """Swaps the weights in, between two decode steps; returns the manifest hash of the live weights after it.

        Tensors are on the CPU, with the layout's dtypes and shapes. `checked_hash` is their manifest hash where the
        caller has just verified it, and that all numbers are finite; without it that is done here. Caches made with the old weights are never used for
        a new prompt.
        """

    def statistics(self) -> EngineStatistics:
        """Counters since start."""

    async def close(self) -> None:
        """Stops its thread; pending calls fail with ShuttingDown."""
