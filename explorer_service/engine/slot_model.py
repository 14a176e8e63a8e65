"""A causal language model of transformers, run on rows of many lengths with a `SlotCache`.

Shape letters: `P` prompts, `T` tokens of the longest of them, `N` rows that join, `B` rows in use, `V` vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from common.errors import ConfigError
from common.experience.experience import IntArray
from explorer_service.engine.masks import MaskFactory
from explorer_service.engine.slot_cache import SlotCache, round_up

_PROBE_TOKENS = 12
_TOLERANCE = {torch.float32: 2e-2, torch.float64: 1e-6}
"""Of the probe, relative to the largest logit: wrong masks or positions are off by far more, TF32 by less."""
_COARSE_TOLERANCE = 1e-1


class SlotModel:
    """Logits of next tokens. Only one thread may use it at a time; the rows' bookkeeping is the caller's."""

    def __init__(self, model: Any, device: torch.device, *, autocast: bool = False) -> None:
        """Takes any `AutoModelForCausalLM`. Raises ConfigError, naming the model, if it cannot work with the cache."""
        self.model = model
        self.device = device
        self.cache = SlotCache()
        self._autocast = autocast
        self._masks = MaskFactory(model.config)
        names = inspect.signature(model.forward).parameters
        # transformers renamed it, and models that bring their own code still have the old name.
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._last: torch.Tensor | None = None
        self._probe()

    def prefill(self, prompts: Sequence[IntArray], prompt_index: torch.Tensor, first: int) -> torch.Tensor:
        """Reads prompts, each once, into the slots `first + i` of prompts `prompt_index[i]`, int64 `[N]`.

        Returns the logits `[P, V]` after each prompt's last token.
        """
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        padded = np.zeros((len(prompts), longest), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        ids = torch.from_numpy(padded).to(self.device)
        positions = torch.arange(longest, device=self.device)[None].expand(len(prompts), -1)
        last = torch.tensor(lengths, device=self.device) - 1
        self.cache.plan_prompts(first, prompt_index, longest, longest + 1)
        mask = self._masks.for_prompts(longest, self.device, self._additive())
        logits = self._forward(ids, positions, mask, last)
        return logits[:, 0] if logits.shape[1] == 1 else logits[torch.arange(len(prompts), device=self.device), last]

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Reads one token a row, int64 `[B]`, at its position, int64 `[B]`, all of them ≤ `longest`.

        Returns the logits `[B, V]` after it.
        """
        span = round_up(longest + 1)
        self.cache.plan_decoding(positions, span)
        mask = self._masks.for_decoding(positions, span, self._additive())
        return self._forward(tokens[:, None], positions[:, None], mask, None)[:, 0]

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: Any, last: torch.Tensor | None
    ) -> torch.Tensor:
        head = None if last is None else self.model.get_output_embeddings()
        # The head sees only each prompt's last token: logits of all tokens of all prompts can be larger than the model.
        hook = None if head is None else head.register_forward_pre_hook(_only_last(last))
        arguments = {self._cache_argument: self.cache}
        try:
            # Its own context each pass: autocast keeps the weights that it has cast until it ends.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
                output = self.model(
                    input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **arguments
                )
        finally:
            if hook is not None:
                hook.remove()
        logits: torch.Tensor = output.logits
        return logits

    def _additive(self) -> torch.dtype | None:
        """The dtype of additive masks, where the model's attention takes those instead of booleans."""
        implementation = self.model.config.get_text_config()._attn_implementation  # noqa: SLF001 - it has no other name
        return None if implementation == "sdpa" else self.model.dtype

    def _probe(self) -> None:
        """Compares rows of different lengths in slots with plain passes, so that no model is sampled wrongly."""
        problems = []
        for implementation in ("sdpa", "eager"):
            try:
                # Where the model has no such attention, or a model's attention refuses (gemma 2), the next is tried.
                self.model.set_attn_implementation(implementation)
                error = self._probe_error()
            except Exception as cause:  # noqa: BLE001 - whatever the model's code raises, it cannot be used like this
                problems.append(f"with {implementation} attention: {cause}")
                continue
            finally:
                self.cache.drop()
            if error <= _TOLERANCE.get(self.model.dtype, _COARSE_TOLERANCE) and not self._autocast:
                return
            if error <= _COARSE_TOLERANCE and self._autocast:
                return
            problems.append(f"with {implementation} attention its logits are off by {error:.2g}")
        raise ConfigError(
            f"model: {self.model.config.model_type} does not work with the torch engine's cache: {'; '.join(problems)}"
        )

    @torch.no_grad()
    def _probe_error(self) -> float:
        config = self.model.config.get_text_config()
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(config.vocab_size, (_PROBE_TOKENS,), generator=generator)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
            expected = self.model(input_ids=ids[None].to(self.device), use_cache=False).logits[0].float()
        tokens = ids.numpy().astype(np.int32)
        lengths = [_PROBE_TOKENS - 2, _PROBE_TOKENS // 2]
        index = torch.tensor([0, 1, 1], device=self.device)
        logits = self.prefill([tokens[:length] for length in lengths], index, 0)
        wrong = [logits[row].float() - expected[length - 1] for row, length in enumerate(lengths)]
        for step in range(2):
            positions = torch.tensor([lengths[0], lengths[1], lengths[1]], device=self.device) + step
            logits = self.decode(ids.to(self.device)[positions], positions, lengths[0] + step)
            wrong.extend(logits.float() - expected[positions])
        worst = torch.stack([difference.abs().max() for difference in wrong]).max()
        return float(worst / expected.abs().max().clamp_min(1e-6))


def _only_last(last: torch.Tensor | None) -> Any:
    def select(_module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = arguments[0]
        return (hidden[torch.arange(hidden.shape[0], device=hidden.device), last][:, None], *arguments[1:])

    return select
