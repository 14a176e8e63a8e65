"""Causal language models: loading or making one, and moving its weights in and out.

Both services use these functions, so both see the same tensors under the same names.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from common.config.model import ModelConfig
from common.errors import ConfigError, ManifestMismatch
from common.models.paths import brief, is_local, resolve_source
from common.models.tokenizer import load_tokenizer
from common.weights.loading import copy_hashed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_NAMES_SHOWN = 3


def load_model(
    config: ModelConfig, *, seed: int, dtype: torch.dtype, attn_implementation: str | None = None
) -> PreTrainedModel:
    """The model on the CPU with parameters of `dtype`; training or evaluation mode is the caller's business.

    With `model.architecture` its weights follow from `seed` alone, up to rounding to `dtype`; the global random state
    stays as it was. Files are read as safetensors only. Raises ConfigError naming the key, the value and what is
    allowed.
    """
    if config.architecture is not None:
        model = _make(config, config.architecture, seed, dtype, attn_implementation)
    elif config.path is not None:
        model = _load(config, config.path, dtype, attn_implementation)
        if config.tokenizer is not None:
            _check_vocabulary(model.config.get_text_config(), load_tokenizer(config))
    else:
        raise ConfigError("model: give exactly one of `path` and `architecture`")
    _check_length(model.config.get_text_config(), config.max_length)
    return model


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a response: the generation config's, and the tokenizer's."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = configured if isinstance(configured, (list, tuple)) else [configured]
    return frozenset(int(token) for token in (*ends, tokenizer.eos_token_id) if token is not None)


def rollout_state(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights and persistent buffers as in `state_dict`: contiguous, on the CPU, floating ones cast to `dtype`.

    Tied tensors appear once, under the first of their names. Where nothing had to change, a tensor shares its memory
    with the model: copy it before the next training step.
    """
    return {
        names[0]: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for names, tensor in _distinct_tensors(model)
    }


def load_rollout_state(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Copies what `rollout_state` gave into the model, in place, keeping its dtypes and its device.

    Returns the xxh3-128 of what the model holds then, in the given dtypes, by the names that were given. Tied tensors are
    expected once, under any of their names. Raises ManifestMismatch, with the model unchanged, when a tensor is missing,
    unknown, or of another shape or kind of number.
    """
    pairs: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    missing: list[str] = []
    unknown = set(tensors)
    for names, target in _distinct_tensors(model):
        given = [name for name in names if name in tensors]
        unknown.difference_update(given)
        if not given:
            missing.append(names[0])
            continue
        source = tensors[given[0]]
        if source.shape != target.shape or source.is_floating_point() != target.is_floating_point():
            raise ManifestMismatch(
                f"tensor {given[0]!r} is {source.dtype} {tuple(source.shape)}, "
                f"the model has {target.dtype} {tuple(target.shape)}"
            )
        pairs.append((given[0], target, source))
    if missing or unknown:
        raise ManifestMismatch(
            f"the tensors are not this model's: missing {_some(missing)}; unknown {_some(sorted(unknown))}"
        )
    return {name: copy_hashed(target, source) for name, target, source in pairs}


def _distinct_tensors(model: torch.nn.Module) -> list[tuple[list[str], torch.Tensor]]:
    """Every parameter and persistent buffer once, with all of its names, in the order of `state_dict`."""
    found: dict[int, tuple[list[str], torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(found.values())


def _load(config: ModelConfig, path: str, dtype: torch.dtype, attn_implementation: str | None) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds, which checking a configuration needs not

    source = resolve_source("model.path", path)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            local_files_only=is_local(source),
            attn_implementation=attn_implementation,
            output_loading_info=True,
        )
    except _load_errors() as error:
        raise ConfigError(f"model.path: cannot load a causal language model from {path!r}: {brief(error)}") from error
    if report["missing_keys"]:
        # transformers only warns, and the run would go on from random numbers.
        raise ConfigError(f"model.path: the files of {path!r} lack tensors: {_some(sorted(report['missing_keys']))}")
    return model


def _make(
    config: ModelConfig, architecture: Mapping[str, Any], seed: int, dtype: torch.dtype, attn_implementation: str | None
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - as in _load

    hf_config = _architecture_config(architecture, load_tokenizer(config))
    extra = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    try:
        with _seeded(seed):
            model = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32, **extra)
    except _load_errors() as error:
        raise ConfigError(f"model.architecture: {dict(architecture)} makes no model: {brief(error)}") from error
    # Drawn in float32 and rounded, so that both sides start equal whatever their dtypes; what is not in the state
    # dict (rotary frequencies) keeps its precision.
    for _, tensor in _distinct_tensors(model):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype
    return model


def _architecture_config(architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    from transformers import AutoConfig  # noqa: PLC0415 - as in _load

    arguments = dict(architecture)
    model_type = arguments.pop("model_type", None)
    if not isinstance(model_type, str):
        raise ConfigError(f"model.architecture.model_type: {model_type!r}; give a name of transformers, such as llama")
    try:
        known = AutoConfig.for_model(model_type)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"model.architecture.model_type: transformers knows no {model_type!r}") from error
    names = {*known.to_dict(), *known.attribute_map}
    for name in arguments:
        # transformers keeps any name as an attribute that nothing reads.
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"model.architecture.{name}: {model_type} has no such setting{hint}")
    defaults = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    try:
        made = AutoConfig.for_model(model_type, **{**defaults, **arguments})
    except _load_errors() as error:
        raise ConfigError(f"model.architecture: {dict(architecture)}: {brief(error)}") from error
    _check_vocabulary(made, tokenizer)
    return made


def _check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    if len(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"model.tokenizer: it has {len(tokenizer)} tokens, more than the model's vocab_size of {config.vocab_size}"
        )


def _load_errors() -> tuple[type[Exception], ...]:
    """What transformers raises for files and settings that make no model."""
    from huggingface_hub.errors import StrictDataclassError  # noqa: PLC0415 - it comes with transformers
    from safetensors import SafetensorError  # noqa: PLC0415 - as above

    return (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, StrictDataclassError, SafetensorError)


def _check_length(config: PreTrainedConfig, max_length: int) -> None:
    """Past its last position a model fails (learned positions) or talks nonsense (rotary ones)."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return
    rope = getattr(config, "rope_parameters", None)
    factor = rope.get("factor") if isinstance(rope, dict) else None
    allowed = int(positions * max(1.0, factor or 1.0))
    if max_length > allowed:
        raise ConfigError(f"model.max_length: {max_length} is more than the model's {allowed} positions")


_SEEDING = threading.Lock()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The CPU's default generator, seeded for a while. `torch.manual_seed` would reseed every GPU as well.

    One thread at a time: two that made a model at once would draw from one generator.
    """
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    rest = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + rest
