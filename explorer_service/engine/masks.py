"""Attention masks for prompts and for decoding, for layers that see everything and for layers with a window.

Shape letters: `B` rows, `T` tokens of a prompt, `K` attended positions. A mask is True where a query sees a key.
"""

from __future__ import annotations

from typing import Any

import torch

from common.errors import ConfigError

Mask = torch.Tensor | dict[str, torch.Tensor]
"""What `attention_mask=` takes: one 4D mask, or one for each layer type where a model mixes them."""


class MaskFactory:
    """Builds the masks that one model needs; in place of booleans, additive ones of `dtype` for eager attention."""

    def __init__(self, config: Any) -> None:
        """Raises ConfigError when a layer type is none that it knows."""
        self._windows = _windows(config.get_text_config())

    def for_prompts(self, length: int, device: torch.device, additive: torch.dtype | None) -> Mask:
        """`[1, 1, T, T]`: causal. Padding on the right needs no mask: no real token comes after it."""
        positions = torch.arange(length, device=device)
        return self._masks(positions[:, None], positions[None, :], (1, 1, length, length), additive)

    def for_decoding(self, positions: torch.Tensor, span: int, additive: torch.dtype | None) -> Mask:
        """`[B, 1, 1, K]` for queries at int64 `positions` `[B]` and keys 0 to span - 1."""
        keys = torch.arange(span, device=positions.device)
        return self._masks(positions[:, None], keys[None, :], (-1, 1, 1, span), additive)

    def _masks(
        self, query: torch.Tensor, key: torch.Tensor, shape: tuple[int, ...], additive: torch.dtype | None
    ) -> Mask:
        causal = key <= query
        masks: dict[str, torch.Tensor] = {}
        for name, window in self._windows.items():
            visible = causal if window is None else causal & (key > query - window)
            visible = visible.view(shape)
            if additive is not None:
                hidden = torch.full((), torch.finfo(additive).min, dtype=additive, device=visible.device)
                visible = torch.where(visible, torch.zeros_like(hidden), hidden)
            masks[name] = visible
        # Models without mixed layers take only the plain mask; those with mixed layers take it too when it is the same.
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _windows(config: Any) -> dict[str, int | None]:
    """Layer type → window in tokens; None sees everything."""
    window = getattr(config, "sliding_window", None)
    types = sorted(set(getattr(config, "layer_types", None) or ()))
    if not types:
        return {"full_attention": window}
    known = {"full_attention": None, "sliding_attention": window}
    unknown = [name for name in types if name not in known]
    if unknown:
        raise ConfigError(
            f"model: {config.model_type} has layers of type {', '.join(unknown)}; "
            f"the torch engine knows {', '.join(known)}"
        )
    return {name: known[name] for name in types}
