"""Tiny random models of several families, and an engine around one."""

import copy
import functools
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import AutoConfig

from common.config.root import TandemConfig
from common.models.tokenizer import character_tokenizer
from explorer_service.engine.torch_engine import TorchRolloutEngine

CHARACTERS = "0123456789+-*= abcdefghijklmno"
VOCABULARY = len(CHARACTERS) + 2
_COMMON = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
_ROTARY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _ROTARY,
    "qwen2": _ROTARY,
    "qwen3": _ROTARY,
    "gemma": _ROTARY,
    # Windows far shorter than the sequences, so that they matter.
    "gemma2": {**_ROTARY, "sliding_window": 5, "query_pre_attn_scalar": 8},
    "gemma3_text": {
        **_ROTARY,
        "sliding_window": 5,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral": {**_ROTARY, "sliding_window": 5},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
}


def tiny_model(family: str = "llama", *, seed: int = 0, scale: float = 6.0, dtype: torch.dtype = torch.float32) -> Any:
    """A random model whose distributions are far from uniform: matrices are `scale` times their usual size."""
    return copy.deepcopy(_prototype(family, seed, scale)).to(dtype).eval()


@functools.cache
def _prototype(family: str, seed: int, scale: float) -> Any:
    config = AutoConfig.for_model(family, **{**_COMMON, **FAMILIES[family]})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return model


def engine_config(**overrides: Any) -> TandemConfig:
    """A configuration for an engine that is given its model."""
    sections: dict[str, Any] = {
        "model": {
            "architecture": {"model_type": "llama"},
            "tokenizer": f"characters:{CHARACTERS}",
            "max_length": 128,
        },
        "explorer": {"device": "cpu", "threads": 1},
    }
    for section, values in overrides.items():
        sections[section] = {**sections.get(section, {}), **values}
    return TandemConfig.model_validate(sections)


def tiny_engine(policy: Any = None, *, tokenizer: Any = None, **overrides: Any) -> TorchRolloutEngine:
    """An engine around a tiny model."""
    return TorchRolloutEngine(
        engine_config(**overrides),
        model=tiny_model() if policy is None else policy,
        tokenizer=character_tokenizer(CHARACTERS) if tokenizer is None else tokenizer,
    )
