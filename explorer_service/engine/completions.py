"""From rows of the batch to completions: ends, stop strings, text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from common.errors import TandemError
from explorer_service.engine import stops
from explorer_service.engine.base import Completion
from explorer_service.engine.batch import DecodeBatch, Sample
from explorer_service.engine.requests import Request


class CompletionWriter:
    """Knows what ends a response, and writes it out."""

    def __init__(self, tokenizer: Any, end_tokens: frozenset[int], vocabulary: int, device: torch.device) -> None:
        self._tokenizer = tokenizer
        self._ends = end_tokens
        self.is_end = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        """bool `[V]`: the tokens that end a response."""
        self.is_end[[token for token in end_tokens if token < vocabulary]] = True

    def stopped(self, batch: DecodeBatch, first: int, tokens: torch.Tensor) -> set[int]:
        """Rows from `first` on whose new token, in int64 `tokens` `[B - first]`, completes a stop string."""
        rows = [row for row in batch.stop_rows if row >= first]
        if not rows:
            return set()
        found = set()
        new = tokens[torch.tensor(rows, device=tokens.device) - first].tolist()
        for row, token in zip(rows, new, strict=True):
            sample = batch.samples[row]
            strings = sample.request.sampling.stop
            sample.tail = [*sample.tail, token][-stops.window(strings) :]
            if stops.contains_stop(self._tokenizer, sample.tail, strings):
                sample.stopped = True
                found.add(row)
        return found

    def write(self, batch: DecodeBatch, rows: Sequence[int], *, newest_version: int) -> tuple[list[Request], list[int]]:
        """Enters the rows' completions into their requests.

        Returns the requests that it failed, and the rows to blame: those whose logits were not finite.
        """
        counts, tokens, logprobs = batch.responses(rows)
        finite = logprobs.isfinite().numpy()
        failed: dict[int, Request] = {}
        poisoned: list[int] = []
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            sample = batch.samples[row]
            if not finite[place, :count].all():
                poisoned.append(row)
                failed[id(sample.request)] = sample.request
                sample.request.reply.fail(TandemError("the policy's logits are not finite"))
                continue
            sample.request.completions[sample.index] = self._completion(
                sample, tokens[place, :count].numpy(), logprobs[place, :count].numpy(), newest_version
            )
        return list(failed.values()), poisoned

    def _completion(
        self,
        sample: Sample,
        tokens: np.ndarray[Any, np.dtype[np.int32]],
        logprobs: np.ndarray[Any, np.dtype[np.float32]],
        newest_version: int,
    ) -> Completion:
        ids: list[int] = tokens.tolist()
        ended = ids[-1] in self._ends
        text = self._tokenizer.decode(
            ids[:-1] if ended else ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Completion(
            tokens=tokens.copy(),
            logprobs=logprobs.copy(),
            oldest_version=sample.oldest_version,
            newest_version=newest_version,
            run_epoch=sample.run_epoch,
            truncated=not ended and not sample.stopped,
            text=stops.cut(text, sample.request.sampling.stop),
        )
