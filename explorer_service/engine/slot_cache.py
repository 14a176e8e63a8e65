"""A key-value cache in slots: every row has its own length, and rows come and go between two passes.

Shape letters: `S` slots allocated, `B` rows in use (always slots 0 to B - 1), `N` rows that join, `P` prompts, `H` heads,
`C` positions allocated a slot, `T` tokens of a pass, `D` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

BLOCK = 16
"""Capacities and attended lengths are multiples of it, so that shapes, and with them kernels, change rarely."""
_WASTE = 8
"""Slots so many times longer than needed are given back when no row uses them: one long row makes all slots long."""


def round_up(length: int) -> int:
    """The smallest multiple of BLOCK that holds `length` positions."""
    return -(-length // BLOCK) * BLOCK


@dataclass(slots=True)
class PassPlan:
    """Where the next forward pass writes and what it reads; shared by all layers of one cache."""

    slots: int = 0
    """`S` that the pass needs at least."""
    capacity: int = 0
    """`C` that the pass needs at least."""
    first: int = 0
    """Prompts: the first slot that is written."""
    prompt_index: torch.Tensor | None = None
    """Prompts: int64 `[N]`, which of the P prompts goes to slot `first + i`. None: this pass decodes."""
    positions: torch.Tensor | None = None
    """Decoding: int64 `[B]`, where each row writes its next key and value."""
    span: int = 0
    """Decoding: positions 0 to span - 1 are attended; the mask hides what lies beyond a row's length."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers comes without types
    """Keys and values of one layer, each `[S, H, C, D]`."""

    def __init__(self, plan: PassPlan) -> None:
        super().__init__()
        self._plan = plan
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: `update` allocates."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores what the pass computed, `[P or B, H, T, D]`, and returns the keys and values to attend to."""
        self.keys = _fit(self.keys, key_states, self._plan)
        self.values = _fit(self.values, value_states, self._plan)
        self.is_initialized = True
        return _store(self.keys, key_states, self._plan), _store(self.values, value_states, self._plan)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the attended keys."""
        return (query_length if self._plan.prompt_index is not None else self._plan.span), 0

    def get_seq_length(self) -> int:
        """Meaningless for rows of many lengths; positions are always given explicitly."""
        return 0

    def get_max_length(self) -> int:
        """No maximum of its own."""
        return -1

    def move(self, source: torch.Tensor, target: torch.Tensor, span: int) -> None:
        """Copies the first `span` positions of slots `source` over those of slots `target`."""
        for stored in (self.keys, self.values):
            if stored is not None:
                used = stored[:, :, :span]
                used[target] = used[source]

    def wipe(self, slots: torch.Tensor) -> None:
        """Zeroes slots: a masked NaN would still poison their next user, since 0 * NaN is NaN."""
        for stored in (self.keys, self.values):
            if stored is not None:
                stored[slots] = 0


class SlotCache(Cache):  # type: ignore[misc]  # transformers comes without types
    """The layers' slots. Plan a pass with `plan_prompts` or `plan_decoding`, then run the model with this cache."""

    def __init__(self) -> None:
        self._plan = PassPlan()
        super().__init__(layer_class_to_replicate=partial(SlotLayer, self._plan))

    def plan_prompts(self, first: int, prompt_index: torch.Tensor, length: int, capacity: int) -> None:
        """The next pass reads prompts padded to `length`, and row `first + i` gets prompt `prompt_index[i]`."""
        plan = self._plan
        plan.slots = first + prompt_index.shape[0]
        plan.capacity = max(round_up(length), round_up(capacity))
        plan.first, plan.prompt_index, plan.positions = first, prompt_index, None
        if first == 0 and self.layers and self.layers[0].keys.shape[2] > _WASTE * plan.capacity:
            self.drop()

    def plan_decoding(self, positions: torch.Tensor, span: int) -> None:
        """The next pass reads one token for each of the first `B` rows, `positions` being int64 `[B]`, all < `span`."""
        plan = self._plan
        plan.slots, plan.capacity, plan.span = positions.shape[0], span, span
        plan.prompt_index, plan.positions = None, positions

    def move(self, source: Sequence[int], target: Sequence[int], span: int) -> None:
        """Copies rows over others, for the first `span` positions."""
        if not source or not self.layers:
            return
        device = self.layers[0].keys.device
        sources, targets = torch.tensor(source, device=device), torch.tensor(target, device=device)
        for layer in self.layers:
            layer.move(sources, targets, span)

    def wipe(self, slots: Sequence[int]) -> None:
        """Zeroes rows."""
        for layer in self.layers:
            layer.wipe(torch.tensor(slots, device=layer.keys.device))

    def drop(self) -> None:
        """Gives all memory back."""
        self.layers.clear()


def _fit(stored: torch.Tensor | None, states: torch.Tensor, plan: PassPlan) -> torch.Tensor:
    """The store, grown at least twofold where it is too small; what is new is zero (see `SlotLayer.wipe`)."""
    if stored is not None and stored.shape[0] >= plan.slots and stored.shape[2] >= plan.capacity:
        return stored
    slots, capacity = plan.slots, plan.capacity
    if stored is not None:
        slots = stored.shape[0] if slots <= stored.shape[0] else max(slots, 2 * stored.shape[0])
        capacity = stored.shape[2] if capacity <= stored.shape[2] else max(capacity, 2 * stored.shape[2])
    grown = states.new_zeros((slots, states.shape[1], capacity, states.shape[3]))
    if stored is not None:
        grown[: stored.shape[0], :, : stored.shape[2]] = stored
    return grown


def _store(stored: torch.Tensor, states: torch.Tensor, plan: PassPlan) -> torch.Tensor:
    if plan.prompt_index is not None:
        rows = slice(plan.first, plan.first + plan.prompt_index.shape[0])
        stored[rows, :, : states.shape[2]] = states.index_select(0, plan.prompt_index)
        return states
    if plan.positions is None:
        raise RuntimeError("a forward pass with a SlotCache needs a plan")
    rows_in_use, heads, _, size = states.shape
    used = stored[:rows_in_use]
    used.scatter_(2, plan.positions.view(-1, 1, 1, 1).expand(-1, heads, 1, size), states)
    return used[:, :, : plan.span]
