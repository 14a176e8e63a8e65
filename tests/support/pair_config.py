"""The configuration of a pair that is small enough to run in a test."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.config.merge import merged
from common.config.root import TandemConfig
from common.config.validate import validate

ARCHITECTURE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
CHARACTERS = "0123456789srcd="
SETTINGS: dict[str, Any] = {
    "run": {"name": "pair"},
    "model": {"architecture": ARCHITECTURE, "tokenizer": f"characters:{CHARACTERS}", "max_length": 32},
    "algorithm": {"optimizer": {"lr": 1e-3}},
    "trainer": {"batch_size": 2, "total_steps": 4, "threads": 1, "peer_timeout": 60},
    "explorer": {
        "batch_size": 2,
        "group_size": 2,
        "threads": 1,
        "peer_timeout": 60,
        "max_groups_per_batch": 2,
        "sampling": {"max_tokens": 5},
        "evaluation": {"at_start": False},
    },
    "taskset": {
        "name": "digit_skills",
        "reward": "share_of_digits",
        "epochs": None,
    },
    "plugins": ["tests.support.reward_plugin"],
    "sync": {"timeout": 60},
    "monitor": {"sinks": ["jsonl"]},
}


def free_address() -> str:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def pair_settings(root: Path, *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """As in a YAML file: the pair below `root`, on ports of its own, with settings of a test's own."""
    trainer, explorer = free_address(), free_address()
    settings = merged(
        SETTINGS,
        {
            "run": {"root": str(root)},
            "trainer": {"address": trainer},
            "explorer": {"address": explorer, "trainer": trainer},
            "explorers": [{"address": explorer}],
        },
    )
    for override in overrides:
        settings = merged(settings, override)
    return settings


def pair_config(root: Path, *overrides: Mapping[str, Any]) -> TandemConfig:
    """The same, validated."""
    return validate(pair_settings(root, *overrides))
