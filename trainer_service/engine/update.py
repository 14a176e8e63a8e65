"""The gradient of one optimizer update, micro-batch by micro-batch.

Shape letters: `A` action tokens of the batch, `N` its sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer_service.algorithm.policy_losses import ActionTokens
from trainer_service.algorithm.presets import Algorithm
from trainer_service.engine.logprobs import PolicyHead
from trainer_service.engine.metrics import StepMetrics
from trainer_service.engine.packing import MicroBatch, PackedBatch, micro_batches
from trainer_service.engine.shared_prompts import shared_micro_batches


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """How forward passes are run."""

    device: torch.device
    autocast: bool
    """bfloat16 autocast."""
    microbatch_tokens: int
    """Tokens of one pass, padding included."""

    def context(self) -> torch.autocast:
        """The autocast that a forward pass runs in."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast)

    def split(self, head: PolicyHead, packed: PackedBatch, sequences: torch.Tensor) -> list[MicroBatch]:
        """The micro-batches of these sequences, on the device; prompts in common are computed once where that pays."""
        shared = (
            shared_micro_batches(packed, sequences, self.microbatch_tokens, head.hidden_size)
            if head.shares_prompts
            else None
        )
        parts = micro_batches(packed, sequences, self.microbatch_tokens) if shared is None else shared
        return [part.to(self.device) for part in parts]


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """What all updates of a step share; tensors of action tokens are on the device."""

    packed: PackedBatch
    """On the CPU."""
    temperature: float
    behaviour: torch.Tensor
    """float32 `[A]`."""
    advantages: torch.Tensor
    """float32 `[A]`."""
    reference: torch.Tensor | None
    """float32 `[A]`: the reference's logprobs, where there is a KL penalty."""


def make_inputs(
    packed: PackedBatch, advantages: torch.Tensor, temperature: float, computation: Computation, head: PolicyHead | None
) -> StepInputs:
    """Moves what a step needs to the device, and asks the reference (`head`) for its logprobs, once for the step."""
    device = computation.device
    reference = None if head is None else torch.zeros(packed.position.shape, device=device)
    if head is not None and reference is not None:
        everything = torch.arange(packed.lengths.numel())
        with torch.no_grad(), computation.context():
            for micro in computation.split(head, packed, everything):
                reference[micro.index] = head.statistics(micro, temperature, entropy_gradient=False).logprobs
    return StepInputs(
        packed=packed,
        temperature=temperature,
        behaviour=packed.behaviour_logprobs.to(device),
        advantages=advantages[packed.sequence].to(device),
        reference=reference,
    )


def accumulate_gradients(
    head: PolicyHead,
    algorithm: Algorithm,
    inputs: StepInputs,
    sequences: torch.Tensor,
    computation: Computation,
    metrics: StepMetrics,
    *,
    first: bool,
) -> torch.Tensor | None:
    """Adds the gradient of the loss over these sequences (int64, indices into the batch); returns the loss, detached.

    None: not one of them has an action token. `first` says that no weight has moved since the step began.
    """
    weights = _token_weights(algorithm, inputs.packed, sequences).to(computation.device)
    total: torch.Tensor | None = None
    for micro in computation.split(head, inputs.packed, sequences):
        with computation.context():
            loss = _micro_loss(head, algorithm, inputs, micro, weights[micro.index], metrics, first=first)
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    return total


def _token_weights(algorithm: Algorithm, packed: PackedBatch, sequences: torch.Tensor) -> torch.Tensor:
    """The aggregation's weight of each of the batch's action tokens, float32 `[A]`; 0 outside these sequences."""
    chosen = torch.zeros(packed.lengths.shape, dtype=torch.bool)
    chosen[sequences] = True
    members = chosen[packed.sequence]
    weights = torch.zeros(packed.sequence.shape)
    weights[members] = algorithm.aggregation(packed.sequence[members])
    return weights


def _micro_loss(
    head: PolicyHead,
    algorithm: Algorithm,
    inputs: StepInputs,
    micro: MicroBatch,
    weights: torch.Tensor,
    metrics: StepMetrics,
    *,
    first: bool,
) -> torch.Tensor:
    config = algorithm.config
    bonus = config.entropy_coefficient
    statistics = head.statistics(micro, inputs.temperature, entropy_gradient=bonus != 0)
    tokens = ActionTokens(statistics.logprobs, inputs.behaviour[micro.index], inputs.advantages[micro.index])
    result = algorithm.policy_loss(tokens, config)
    policy = (weights * result.losses).sum()
    parts = {"policy": policy}
    if inputs.reference is not None:
        estimate = algorithm.kl(tokens.logprobs, inputs.reference[micro.index])
        parts["kl"] = config.kl.coefficient * (weights * estimate).sum()
        metrics.add_reference(estimate)
    if bonus != 0:
        parts["entropy"] = -bonus * (weights * statistics.entropy).sum()
    loss = policy if len(parts) == 1 else torch.stack(list(parts.values())).sum()
    metrics.add_losses({**parts, "total": loss})
    metrics.add_tokens(tokens, result, statistics.entropy, behaviour=algorithm.uses_behaviour)
    if first and algorithm.uses_behaviour:
        metrics.add_parity(tokens)
    return loss
