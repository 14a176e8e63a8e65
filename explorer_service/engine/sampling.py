"""Drawing tokens for many rows at once, with the behaviour logprobs on the support that was drawn from.

Shape letters: `B` rows, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Knobs:
    """How each row is drawn."""

    temperature: torch.Tensor
    """float32 `[B]`; 1 where greedy."""
    greedy: torch.Tensor
    """bool `[B]`."""
    top_k: torch.Tensor
    """int64 `[B]`; at least V where off."""
    top_p: torch.Tensor
    """float64 `[B]`; 2 where off: sums of probabilities may come out above 1."""
    any_greedy: bool
    """Whether some row is greedy."""
    all_greedy: bool
    """Whether every row is greedy."""
    truncates: bool
    """Whether some row has top-k or top-p."""


def draw(logits: torch.Tensor, uniforms: torch.Tensor, knobs: Knobs) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 `[B]` and their logprobs float32 `[B]`, from logits `[B, V]` and float64 uniforms `[B]` in [0, 1).

    A token is where the cumulative distribution, in the vocabulary's order, passes the row's uniform: it depends on the
    row alone, even when other rows have a top-k. Top-k is applied first, top-p to what it leaves (renormalized), as in `transformers`; the support always keeps the likeliest
    token. A greedy row takes the likeliest token, with its logprob in the untempered, whole distribution.
    """
    logits = logits.float()
    if knobs.all_greedy:
        tokens = logits.argmax(-1, keepdim=True)
        return tokens[:, 0], logits.log_softmax(-1).gather(1, tokens)[:, 0]
    scaled = logits / knobs.temperature[:, None]
    if knobs.truncates:
        scaled = _truncated(scaled, knobs)
    logprobs = scaled.log_softmax(-1)
    # In float64, because the rounding of a float32 sum over a large vocabulary is as big as rare tokens' chances.
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    # right=True never lands on a token of probability zero; the clamp only matters when the logits are not finite.
    tokens = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None], right=True)
    tokens.clamp_(max=logits.shape[-1] - 1)
    if knobs.any_greedy:
        tokens = torch.where(knobs.greedy[:, None], scaled.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _truncated(logits: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Logits `[B, V]` with -inf outside each row's support; of equal ones at its edge the first tokens stay."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill(ranks >= knobs.top_k[:, None], -torch.inf)
    probabilities = ordered.softmax(-1, dtype=torch.float64)
    before = probabilities.cumsum(-1) - probabilities
    outside = (before >= knobs.top_p[:, None]) & (ranks > 0)
    return torch.empty_like(logits).scatter_(1, order, ordered.masked_fill_(outside, -torch.inf))
