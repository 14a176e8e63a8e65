"""Entropy of the policy's next-token distributions.

Shape letters: `A` action tokens, `V` vocabulary.
"""

from __future__ import annotations

import torch


def entropy(log_distribution: torch.Tensor) -> torch.Tensor:
    """-Σ p log p in nats, float32 `[A]`, of log-probabilities `[A, V]`; impossible tokens (-inf) contribute 0."""
    finite = log_distribution.clamp(min=torch.finfo(log_distribution.dtype).min)
    return -(log_distribution.exp() * finite).sum(-1)
