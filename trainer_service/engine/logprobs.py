"""Logprobs and entropies of the action tokens, a few rows of logits at a time.

Both sides must compute the same number: log_softmax(logits / temperature) in float32. Shape letters: `B` sequences, `L`
padded length, `A` action tokens, `H` hidden size, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from trainer_service.algorithm.entropy import entropy
from trainer_service.engine.packing import MicroBatch

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
"""float32 logits of one chunk. About four times as much lives at once (logits, log-distribution, their gradients); a
vocabulary of 150,000 still gets 111 rows on the CPU, enough for an efficient matrix product."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenStatistics:
    """What the policy says about the action tokens of a micro-batch."""

    logprobs: torch.Tensor
    """float32 `[A]`."""
    entropy: torch.Tensor
    """float32 `[A]`, in nats; carries a gradient only when that was asked for."""


class PolicyHead:
    """Runs a causal language model up to the logits of the rows that matter.

    Most models' logits are their output layer's product with the last hidden states; then only the action tokens' rows
    are ever multiplied, in chunks whose logits are made again for the backward pass. A model that does something else
    on top (soft caps, scales) is recognized by a probe, and its own forward pass is used for everything.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._output = model.get_output_embeddings()
        with torch.no_grad():
            self._split = self._output is not None and model.base_model is not model and self._probe()
            self.shares_prompts = self._probe_sharing()

    def _probe(self) -> bool:
        device = next(self._model.parameters()).device
        ids = torch.arange(4, device=device).remainder(self._model.config.get_text_config().vocab_size).unsqueeze(0)
        whole = self._model(input_ids=ids, use_cache=False).logits
        parts = self._output(self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
        return torch.equal(whole, parts)

    def _probe_sharing(self) -> bool:
        """Whether the model takes rows of a prompt and two responses, and gives them the numbers of plain rows.

        Not where layers look back over a window only: their masks are made inside the model.
        """
        config = self._model.config.get_text_config()
        if config._attn_implementation != "sdpa" or getattr(config, "sliding_window", None):  # noqa: SLF001 - the one place where it stands
            return False
        device = next(self._model.parameters()).device
        prompt, left, right = [1, 2, 3], [4, 5], [6, 7]
        vocabulary = int(config.vocab_size)

        def logits(row: list[int], **more: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor([row], device=device).remainder(vocabulary)
            found: torch.Tensor = self._model(input_ids=ids, use_cache=False, **more).logits[0].float()
            return found

        segment = torch.tensor([0, 0, 0, 1, 1, 2, 2], device=device)
        seen = (segment.unsqueeze(0) == 0) | (segment.unsqueeze(0) == segment.unsqueeze(1))
        mask = (seen & torch.ones(7, 7, dtype=torch.bool, device=device).tril())[None, None]
        positions = torch.tensor([[0, 1, 2, 3, 4, 3, 4]], device=device)
        shared = logits([*prompt, *left, *right], attention_mask=mask, position_ids=positions)
        plain = torch.cat([logits([*prompt, *left]), logits([*prompt, *right])[3:]])
        return torch.allclose(shared, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))

    @property
    def hidden_size(self) -> int:
        """Of the model's blocks."""
        return int(self._model.config.get_text_config().hidden_size)

    def statistics(self, micro: MicroBatch, temperature: float, *, entropy_gradient: bool) -> TokenStatistics:
        """The statistics of the micro-batch's action tokens under the model; temperature 0 (greedy) counts as 1."""
        inputs = {"input_ids": micro.input_ids, "use_cache": False}
        if micro.attention_mask is not None:
            inputs |= {"attention_mask": micro.attention_mask, "position_ids": micro.position_ids}
        if self._split:
            states = self._model.base_model(**inputs).last_hidden_state
            project = self._output
        else:
            states = self._model(**inputs).logits
            project = _identity
        rows = states.flatten(0, 1).index_select(0, micro.rows)
        width = self._model.config.get_text_config().vocab_size
        size = max(1, CHUNK_BYTES.get(rows.device.type, CHUNK_BYTES["cpu"]) // (4 * width))

        def compute(part: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return row_statistics(project(part), targets, temperature, entropy_gradient=entropy_gradient)

        return _in_chunks(compute, rows, micro.targets, size)


def row_statistics(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, *, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs `[A]` of the targets `[A]` under logits `[A, V]` of any dtype, and the rows' entropies `[A]`."""
    scaled = logits.float() if temperature in {0.0, 1.0} else logits.float() / temperature
    distribution = scaled.log_softmax(-1)
    chosen = distribution.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen, entropy(distribution if entropy_gradient else distribution.detach())


def _identity(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _in_chunks(
    compute: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    rows: torch.Tensor,
    targets: torch.Tensor,
    size: int,
) -> TokenStatistics:
    if rows.shape[0] <= size:
        return TokenStatistics(*compute(rows, targets))
    logprobs: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for part, wanted in zip(torch.split(rows, size), torch.split(targets, size), strict=True):
        if torch.is_grad_enabled():
            chosen, uncertainty = checkpoint(compute, part, wanted, use_reentrant=False, preserve_rng_state=False)
        else:
            chosen, uncertainty = compute(part, wanted)
        logprobs.append(chosen)
        entropies.append(uncertainty)
    return TokenStatistics(torch.cat(logprobs), torch.cat(entropies))
