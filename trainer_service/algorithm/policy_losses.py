"""Policy losses, one number a token.

Shape letter: `A` action tokens. Tokens that the policy did not sample are never passed in: they are left out by
selection, not multiplied by 0, so whatever stands there (NaN too) reaches neither loss nor gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from common.config.algorithm import AlgorithmConfig
from common.registry import Registry

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this, as in verl: exp(20) = 5e8 is finite in float32 and bfloat16, exp(89) is not."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionTokens:
    """What a policy loss sees."""

    logprobs: torch.Tensor
    """float32 `[A]`: under the policy that is trained; carries the gradient."""
    behaviour_logprobs: torch.Tensor
    """float32 `[A]`: under the policy that sampled them."""
    advantages: torch.Tensor
    """float32 `[A]`: of the token's sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """What a policy loss gives."""

    losses: torch.Tensor
    """float32 `[A]`, to be minimized."""
    clipped: torch.Tensor | None = None
    """bool `[A]`: tokens whose gradient was cut off, for the metric; None: this loss never does that."""


PolicyLoss = Callable[[ActionTokens, AlgorithmConfig], TokenLosses]
"""The loss of each action token."""

POLICY_LOSSES: Registry[PolicyLoss] = Registry("policy loss")
WITHOUT_BEHAVIOUR = frozenset({"sft"})
"""Losses on examples that no policy sampled: ratios and parity say nothing there."""


def log_ratio(logprobs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`logprobs - other`, clamped to ± `MAX_LOG_RATIO`; the gradient is 0 beyond."""
    return (logprobs - other).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


@POLICY_LOSSES.register("ppo_clip")
def ppo_clip(tokens: ActionTokens, config: AlgorithmConfig) -> TokenLosses:
    """-min(w A, clip(w, 1 - clip_low, 1 + clip_high) A): PPO, https://arxiv.org/abs/1707.06347, equation 7.

    Where w is the token's probability under the trained policy over that under the *behaviour* policy, so that data which is
    some steps old, or comes from another engine's numerics, is corrected by what really sampled it.
    """
    ratio = log_ratio(tokens.logprobs, tokens.behaviour_logprobs).exp()
    low, high = 1 - config.clip_low, 1 + config.clip_high
    advantages = tokens.advantages
    losses = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    with torch.no_grad():
        clipped = ((ratio > high) & (advantages > 0)) | ((ratio < low) & (advantages < 0))
    return TokenLosses(losses, clipped)


@POLICY_LOSSES.register("reinforce")
def reinforce(tokens: ActionTokens, config: AlgorithmConfig) -> TokenLosses:  # noqa: ARG001 - PolicyLoss's
    """-A log π: the score function estimator, without any correction for older data (Williams, 1992)."""
    return TokenLosses(-tokens.advantages * tokens.logprobs)


@POLICY_LOSSES.register("sft")
def sft(tokens: ActionTokens, config: AlgorithmConfig) -> TokenLosses:  # noqa: ARG001 - PolicyLoss's
    """-log π: the negative log-likelihood of the examples."""
    return TokenLosses(-tokens.logprobs)
