"""The engine's state at one moment, copied off the training tensors, and its way to disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from common.errors import StorageFailed
from trainer_service.engine.state import ENGINE_FILE, MODEL_FILE, OPTIMIZER_FILE, EngineState

_ONE_FILE = 1 << 60
"""`save_pretrained` splits files above a size; ours is one file, whatever its size."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchCapture:
    """Implements `EngineCapture`. All tensors are copies, contiguous, on the CPU."""

    weights: Mapping[str, torch.Tensor]
    """Parameters and persistent buffers in their own dtypes; tied ones once, under their first name."""
    moments: Mapping[str, torch.Tensor]
    """See moments.py."""
    state: EngineState
    """The rest."""
    model: Any
    """Of it only the configuration is written."""
    tokenizer: Any
    """Written with the Hugging Face layout."""

    def write(self, folder: Path, *, hf_layout: bool) -> None:
        """Writes into an existing, empty folder; may be called in any thread. Raises StorageFailed."""
        try:
            if hf_layout:
                # The model's own names: the architecture's loader takes them as well as those of published checkpoints.
                self.model.save_pretrained(
                    folder, state_dict=dict(self.weights), max_shard_size=_ONE_FILE, save_original_format=False
                )
                self.tokenizer.save_pretrained(folder)
            else:
                save_file(dict(self.weights), folder / MODEL_FILE, metadata={"format": "pt"})
            save_file(dict(self.moments), folder / OPTIMIZER_FILE)
            (folder / ENGINE_FILE).write_text(json.dumps(asdict(self.state), indent=1) + "\n", encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise StorageFailed(f"cannot write the engine's state to {folder}: {error}") from error


def master_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers as they are, where they are; tied ones once, under their first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())
