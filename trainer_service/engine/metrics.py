"""Sums over the micro-batches of a step, kept on the device and read once.

Shape letter: `A` action tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trainer_service.algorithm.policy_losses import ActionTokens, TokenLosses, log_ratio


class StepMetrics:
    """Adds up numbers of a step; every read waits for the device, so there is only one.

    Token averages are over all action tokens that the step's updates saw: twice the batch's with two epochs. Parity is
    that of the first update, before any weight has moved.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._greatest: dict[str, torch.Tensor] = {}
        self._tokens = 0
        self._parity_tokens = 0

    @torch.no_grad()
    def add_losses(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Parts of the loss, already weighted: they add up to an update's loss."""
        for name, value in losses.items():
            self._add(f"loss/{name}", value)

    @torch.no_grad()
    def add_tokens(self, tokens: ActionTokens, result: TokenLosses, entropy: torch.Tensor, *, behaviour: bool) -> None:
        """What the losses saw, float32 `[A]` each."""
        self._tokens += tokens.logprobs.numel()
        self._add("entropy/mean", entropy.sum())
        self._add("advantage/mean_abs", tokens.advantages.abs().sum())
        if not behaviour:
            return
        logarithm = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
        ratio = logarithm.exp()
        self._add("ratio/mean", ratio.sum())
        # Schulman's k3 of KL(behaviour ‖ policy), on the behaviour policy's samples.
        self._add("kl/behaviour", (ratio - 1 - logarithm).sum())
        clipped = result.clipped
        self._add("ratio/clip_fraction", ratio.new_zeros(()) if clipped is None else clipped.sum())

    @torch.no_grad()
    def add_parity(self, tokens: ActionTokens) -> None:
        """The first update's logprobs beside the behaviour's."""
        difference = (tokens.logprobs - tokens.behaviour_logprobs).abs()
        self._parity_tokens += difference.numel()
        self._add("parity/mean_logprob_diff", difference.sum())
        greatest = self._greatest.get("parity/max_logprob_diff")
        now = difference.max()
        self._greatest["parity/max_logprob_diff"] = now if greatest is None else torch.maximum(greatest, now)

    @torch.no_grad()
    def add_reference(self, estimate: torch.Tensor) -> None:
        """The KL estimate of each action token, float32 `[A]`."""
        self._add("kl/reference", estimate.sum())

    def add_norm(self, norm: torch.Tensor) -> None:
        """The global gradient norm of an update, before clipping."""
        self._add("grad/norm", norm)

    def read(self, updates: int) -> dict[str, float]:
        """Averages: of losses and norms over the updates, of the rest over tokens."""
        names = [*self._sums, *self._greatest]
        if not names:
            return {}
        numbers = torch.stack([t.float() for t in (*self._sums.values(), *self._greatest.values())]).tolist()
        divisors = {"loss": updates, "grad": updates, "parity": self._parity_tokens}
        return {
            name: number if name in self._greatest else number / max(divisors.get(name.split("/")[0], self._tokens), 1)
            for name, number in zip(names, numbers, strict=True)
        }

    def _add(self, name: str, value: torch.Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value.detach()
