"""How token losses become one number: as weights, so that micro-batches cannot change the result.

The loss of an update is the sum of weight times loss over its action tokens. The weights are made once for the whole
mini-batch, with its token and sequence counts; micro-batches then only add up. Shape letters: `A` action tokens of the
mini-batch, `N` sequences that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

Aggregation = Callable[[torch.Tensor], torch.Tensor]
"""Sequence of each action token, int64 `[A]`, to its weight, float32 `[A]`. Sequences without an action token do not
count."""


def token_mean(sequence: torch.Tensor) -> torch.Tensor:
    """1 / A: every token counts alike (DAPO, https://arxiv.org/abs/2503.14476, equation 8)."""
    return torch.full(sequence.shape, 1 / max(sequence.numel(), 1), dtype=torch.float32, device=sequence.device)


def sequence_mean(sequence: torch.Tensor) -> torch.Tensor:
    """1 / (N · tokens of the sequence): every sequence counts alike (GRPO, https://arxiv.org/abs/2402.03300)."""
    counts = torch.bincount(sequence)
    present = (counts > 0).sum()
    return (1.0 / (counts[sequence].double() * present)).float()


def sequence_sum(sequence: torch.Tensor) -> torch.Tensor:
    """1 / N: the sum over a sequence's tokens, averaged over sequences (Dr. GRPO, https://arxiv.org/abs/2503.20783).

    TRL's `dr_grpo` divides this by a constant, its maximal completion length; AdamW does not see a constant.
    """
    present = (torch.bincount(sequence) > 0).sum().clamp(min=1)
    return (1.0 / present.double()).float().expand(sequence.shape)


AGGREGATIONS: Mapping[str, Aggregation] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
}
