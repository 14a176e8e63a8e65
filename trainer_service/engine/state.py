"""An engine's files, `model.safetensors`, `optimizer.safetensors` and `engine.json`, and how they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from common.errors import CheckpointInvalid

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
ENGINE_FILE = "engine.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is neither a weight nor a moment."""

    format: int
    """`FORMAT`."""
    steps: int
    """Train steps done, skipped ones included: the schedule's clock."""
    skipped_steps: int
    """Steps in which a non-finite loss or gradient stopped the update."""
    nonfinite_in_a_row: int
    """Of these, how many came last, one after the other."""
    schedule: dict[str, float | str]
    """Schedule and peak learning rate that were in use; for the reader, the configuration decides."""
    reference_hash: str
    """Manifest hash of the KL penalty's reference; empty without one."""
    cpu_rng: str
    """State of torch's default generator, hex."""
    cuda_rng: str
    """State of the device's generator, hex; empty on the CPU."""
    shuffle_rng: str
    """State of the generator that makes mini-batches, hex."""


def rng_to_hex(state: torch.Tensor) -> str:
    """A generator's state, uint8, as text."""
    return state.cpu().numpy().tobytes().hex()


def rng_from_hex(text: str) -> torch.Tensor:
    """What `rng_to_hex` was given. Raises CheckpointInvalid."""
    try:
        return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
    except ValueError as error:
        raise CheckpointInvalid(f"{ENGINE_FILE}: a random state is not hexadecimal: {error}") from error


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, on the CPU. Raises CheckpointInvalid."""
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointInvalid(f"cannot read {path}: {error}") from error
    return tensors


def read_state(folder: Path) -> EngineState:
    """`engine.json`. Raises CheckpointInvalid naming what is wrong."""
    path = folder / ENGINE_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointInvalid(f"cannot read {path}: {error}") from error
    names = {field.name for field in fields(EngineState)}
    if not isinstance(values, dict) or set(values) != names:
        raise CheckpointInvalid(f"{path} must have exactly the keys {', '.join(sorted(names))}")
    state = EngineState(**values)
    counters = (state.format, state.steps, state.skipped_steps, state.nonfinite_in_a_row)
    texts = (state.reference_hash, state.cpu_rng, state.cuda_rng, state.shuffle_rng)
    if not all(type(value) is int and value >= 0 for value in counters) or not all(type(t) is str for t in texts):
        raise CheckpointInvalid(f"{path}: counters must be whole numbers from 0, hashes and random states texts")
    if state.format != FORMAT:
        raise CheckpointInvalid(f"{path} has format {state.format}, this version reads {FORMAT}")
    return state
