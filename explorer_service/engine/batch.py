"""The rows that are decoded together: row i uses slot i of the cache, rows 0 to B - 1 are in use.

Shape letters: `S` rows allocated, `B` rows in use, `N` rows that join, `W` tokens a response can have at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from explorer_service.engine.requests import Request
from explorer_service.engine.sampling import Knobs

NO_TOP_K = torch.iinfo(torch.int64).max
NO_TOP_P = 2.0


@dataclass(slots=True, eq=False)
class Sample:
    """One sample of a request, while it has a row."""

    request: Request
    index: int
    """Which of the request's samples."""
    oldest_version: int
    """Policy step of its first token's weights."""
    run_epoch: int
    """Run epoch of its first token's weights."""
    tail: list[int] = field(default_factory=list)
    """The last tokens, kept only where stop strings need them."""
    stopped: bool = False
    """Whether a stop string ended it."""


_COLUMNS: dict[str, torch.dtype] = {
    "last": torch.int64,
    "length": torch.int64,
    "count": torch.int64,
    "limit": torch.int64,
    "temperature": torch.float32,
    "greedy": torch.bool,
    "top_k": torch.int64,
    "top_p": torch.float64,
}
"""`[S]`: the newest token, positions in the cache, tokens sampled, tokens allowed, and the sampling."""
_TABLES: dict[str, torch.dtype] = {
    "uniforms": torch.float64,
    "tokens": torch.int32,
    "logprobs": torch.float32,
}
"""`[S, W]`: one entry a token of the response."""


class DecodeBatch:
    """Tensors with one row a sample. Work that is Python a row happens only when rows join or leave."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._state = {name: torch.empty(0, dtype=dtype, device=device) for name, dtype in _COLUMNS.items()}
        self._state |= {name: torch.empty(0, 0, dtype=dtype, device=device) for name, dtype in _TABLES.items()}
        self.samples: list[Sample] = []
        self.stop_rows: list[int] = []
        """Rows whose request has stop strings."""
        self.longest = 0
        """Positions of the longest row in the cache."""
        self._kinds = (False, False, False)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def last(self) -> torch.Tensor:
        """int64 `[B]`: each row's newest token."""
        return self._state["last"][: len(self)]

    @property
    def length(self) -> torch.Tensor:
        """int64 `[B]`: positions of each row in the cache, which is where its newest token goes."""
        return self._state["length"][: len(self)]

    def uniforms(self, first: int) -> torch.Tensor:
        """float64 `[B - first]`: for the next token of the rows from `first` on."""
        rows = slice(first, len(self))
        return self._state["uniforms"][rows].gather(1, self._state["count"][rows, None])[:, 0]

    def knobs(self, first: int) -> Knobs:
        """The sampling of the rows from `first` on."""
        rows = slice(first, len(self))
        temperature, greedy, top_k, top_p = (
            self._state[name][rows] for name in ("temperature", "greedy", "top_k", "top_p")
        )
        any_greedy, all_greedy, truncates = self._kinds
        return Knobs(temperature, greedy, top_k, top_p, any_greedy, all_greedy, truncates)

    def append(self, samples: Sequence[Sample]) -> None:
        """Adds rows whose prompts are in the cache and whose first token is drawn next."""
        first, last = len(self), len(self) + len(samples)
        width = max(sample.request.limit for sample in samples)
        self._reserve(last, width)
        configs = [sample.request.sampling for sample in samples]
        greedy = [config.temperature == 0 for config in configs]
        values: dict[str, list[float] | list[int] | list[bool]] = {
            "last": [0] * len(samples),
            "length": [len(sample.request.prompt) for sample in samples],
            "count": [0] * len(samples),
            "limit": [sample.request.limit for sample in samples],
            "temperature": [config.temperature or 1.0 for config in configs],
            "greedy": greedy,
            "top_k": [
                NO_TOP_K if greed or not config.top_k else config.top_k
                for config, greed in zip(configs, greedy, strict=True)
            ],
            "top_p": [
                NO_TOP_P if greed or config.top_p == 1 else config.top_p
                for config, greed in zip(configs, greedy, strict=True)
            ],
        }
        for name, column in values.items():
            self._state[name][first:last] = torch.tensor(column, dtype=_COLUMNS[name])
        self._state["uniforms"][first:last, :width] = torch.from_numpy(_uniforms(samples, width))
        self.samples.extend(samples)
        self._members_changed()

    def record(self, first: int, tokens: torch.Tensor, logprobs: torch.Tensor, is_end: torch.Tensor) -> torch.Tensor:
        """Writes a token of every row from `first` on; returns bool `[B - first]`, which of them end with it."""
        rows = slice(first, len(self))
        count = self._state["count"][rows]
        self._state["tokens"][rows].scatter_(1, count[:, None], tokens[:, None].int())
        self._state["logprobs"][rows].scatter_(1, count[:, None], logprobs[:, None])
        self._state["last"][rows] = tokens
        count += 1
        return is_end[tokens] | (count >= self._state["limit"][rows])

    def advance(self) -> None:
        """Every row's newest token has gone into the cache."""
        self.length.add_(1)
        self.longest += 1

    def responses(self, rows: Sequence[int]) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """Of these rows: the number of tokens, and on the CPU the tokens and logprobs, padded to the longest."""
        index = torch.tensor(rows, device=self._device)
        counts: list[int] = self._state["count"][index].tolist()
        width = max(counts)
        return counts, self._state["tokens"][index, :width].cpu(), self._state["logprobs"][index, :width].cpu()

    def remove(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Takes rows out; returns which rows moved, from where and to where, so that the cache can follow."""
        gone = set(rows)
        left = len(self) - len(gone)
        target = sorted(row for row in gone if row < left)
        source = [row for row in range(left, len(self)) if row not in gone]
        if source:
            sources, targets = (torch.tensor(moved, device=self._device) for moved in (source, target))
            for column in self._state.values():
                column[targets] = column[sources]
            for old, new in zip(source, target, strict=True):
                self.samples[new] = self.samples[old]
        del self.samples[left:]
        self._members_changed()
        return source, target

    def _members_changed(self) -> None:
        used = len(self)
        self.stop_rows = [row for row, sample in enumerate(self.samples) if sample.request.sampling.stop]
        self.longest = int(self.length.max()) if used else 0
        configs = {id(sample.request): sample.request.sampling for sample in self.samples}.values()
        greedy = [config.temperature == 0 for config in configs]
        truncates = any(config.temperature > 0 and (config.top_k or config.top_p < 1) for config in configs)
        self._kinds = (any(greedy), all(greedy), truncates)

    def _reserve(self, rows: int, width: int) -> None:
        """Grows at least twofold, so that joining costs amortized O(1) a row."""
        have_rows, have_width = self._state["tokens"].shape
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        width = have_width if width <= have_width else max(width, 2 * have_width)
        if (rows, width) == (have_rows, have_width):
            return
        for name, column in self._state.items():
            grown = column.new_zeros((rows, width) if name in _TABLES else (rows,))
            if name in _TABLES:
                grown[:have_rows, :have_width] = column
            else:
                grown[:have_rows] = column
            self._state[name] = grown


def _uniforms(samples: Sequence[Sample], width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    table = np.zeros((len(samples), width))
    start = 0
    while start < len(samples):
        request = samples[start].request
        end = start
        while end < len(samples) and samples[end].request is request:
            end += 1
        table[start:end, : request.limit] = request.uniforms([sample.index for sample in samples[start:end]])
        start = end
    return table
