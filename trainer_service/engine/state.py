"""An engine's files: `model.safetensors`, `optimizer.safetensors` and `engine.json`.

Only safetensors and JSON. A folder is read and checked as a whole before anything of it is applied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.errors import CheckpointInvalid, StorageFailed

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
ENGINE_FILE = "engine.json"
FORMAT = 1
_ONE_FILE = 1 << 60
"""`save_pretrained` splits files above a size; ours is one file, whatever its size."""


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
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
    except ValueError as error:
        raise CheckpointInvalid(f"{ENGINE_FILE}: a random state is not hexadecimal: {error}") from error


def master_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers as they are, where they are; tied ones once, under their first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())


def write_model(folder: Path, model: Any, tokenizer: Any | None) -> None:
    """Writes the master weights; given a tokenizer, as a folder that `from_pretrained` opens. Raises StorageFailed."""
    try:
        if tokenizer is None:
            weights = {name: tensor.contiguous() for name, tensor in master_tensors(model).items()}
            save_file(weights, folder / MODEL_FILE, metadata={"format": "pt"})
        else:
            model.save_pretrained(folder, max_shard_size=_ONE_FILE)
            tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise StorageFailed(f"cannot write the weights to {folder}: {error}") from error


def read_weights(folder: Path, model: Any) -> dict[str, torch.Tensor]:
    """The master weights of a folder, under the model's own names, on the CPU. Raises CheckpointInvalid."""
    weights = read_tensors(folder / MODEL_FILE)
    if set(weights) <= set(model.state_dict()) or not (folder / "config.json").is_file():
        return weights
    # For some architectures `save_pretrained` writes the names and layout of the published checkpoint, not the model's.
    try:
        loaded = type(model).from_pretrained(folder, dtype=model.dtype, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointInvalid(f"{folder} does not load as {type(model).__name__}: {error}") from error
    return master_tensors(loaded)


def write_training(folder: Path, moments: Mapping[str, torch.Tensor], state: EngineState) -> None:
    """Writes the optimizer's tensors and the rest. Raises StorageFailed."""
    try:
        save_file(dict(moments), folder / OPTIMIZER_FILE)
        (folder / ENGINE_FILE).write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise StorageFailed(f"cannot write the optimizer's state to {folder}: {error}") from error


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


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """The optimizer's state as `PARAMETER/KEY` tensors on the CPU; `names` maps the id of a parameter to its name."""
    return {
        f"{names[id(parameter)]}/{key}": value.detach().cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def check_optimizer_tensors(tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
    """Whether these are AdamW's tensors for some of these parameters. Raises CheckpointInvalid."""
    for key in tensors:
        name, _, part = key.rpartition("/")
        if name not in parameters or part not in {"step", "exp_avg", "exp_avg_sq"}:
            raise CheckpointInvalid(f"{OPTIMIZER_FILE}: tensor {key!r} belongs to no trained parameter")
        shape = torch.Size() if part == "step" else parameters[name].shape
        if tensors[key].shape != shape:
            raise CheckpointInvalid(f"{OPTIMIZER_FILE}: tensor {key!r} has shape {tuple(tensors[key].shape)}")
    for name in {key.rpartition("/")[0] for key in tensors}:
        if not all(f"{name}/{part}" in tensors for part in ("step", "exp_avg", "exp_avg_sq")):
            raise CheckpointInvalid(f"{OPTIMIZER_FILE}: the moments of {name!r} are incomplete")


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Puts checked tensors into AdamW; parameters without any start anew."""
    optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, part = key.rpartition("/")
        parameter = parameters[name]
        # The fused kernel keeps its step counter beside the parameter; the moments are there in any case.
        optimizer.state[parameter][part] = tensor.to(parameter.device, copy=True)
