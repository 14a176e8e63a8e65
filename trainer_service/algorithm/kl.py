"""Estimators of KL(policy ‖ reference) from the sampled tokens, http://joschu.net/blog/kl-approx.html.

With d = log π_ref - log π of a token that π sampled. Shape letter: `A` action tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from trainer_service.algorithm.policy_losses import log_ratio

KlEstimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logprobs float32 `[A]` of the policy and of the reference to an estimate for each token, float32 `[A]`."""


def k1(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """-d: unbiased, high variance; as a loss its gradient is 0 in expectation, so it measures but hardly pulls."""
    return -log_ratio(reference, logprobs)


def k2(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """d² / 2: biased, low variance; its gradient is the KL's."""
    return log_ratio(reference, logprobs).square() / 2


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """exp(d) - 1 - d: unbiased and never negative; GRPO's choice."""
    difference = log_ratio(reference, logprobs)
    return difference.expm1() - difference


KL_ESTIMATORS: Mapping[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3}
