"""Small batches and engines for tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from common.config.root import TandemConfig
from trainer_service.engine.base import TrainBatch
from trainer_service.engine.torch_engine import TorchTrainEngine

CHARACTERS = "0123456789+=abcd"
VOCABULARY = len(CHARACTERS) + 2
ARCHITECTURE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def tiny_config(
    algorithm: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    architecture: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
) -> TandemConfig:
    """A configuration of a llama of 16 hidden units on the CPU; the arguments replace keys of its sections."""
    return TandemConfig.model_validate(
        {
            "model": {
                "architecture": {**ARCHITECTURE, **(architecture or {})},
                "tokenizer": f"characters:{CHARACTERS}",
                "max_length": 64,
                **(model or {}),
            },
            "algorithm": {"optimizer": {"lr": 1e-2}, **(algorithm or {})},
            "trainer": {"device": "cpu", "threads": 1, **(trainer or {})},
            "run": run or {},
        }
    )


def tiny_engine(total_steps: int | None = None, **sections: Any) -> TorchTrainEngine:
    """An engine over `tiny_config(**sections)`."""
    return TorchTrainEngine(tiny_config(**sections), total_steps)


def make_batch(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    masks: Sequence[Sequence[int]] | None = None,
    logprobs: Sequence[Sequence[float]] | None = None,
    rewards: Sequence[float] | None = None,
    groups: Sequence[int] | None = None,
    temperature: float = 1.0,
) -> TrainBatch:
    """A batch of (prompt, response) token lists; everything is trained, with logprobs -1, where nothing else is said."""
    lengths = [len(prompt) + len(response) for prompt, response in sequences]
    responses = [response for _, response in sequences]
    masks = [[1] * len(response) for response in responses] if masks is None else masks
    logprobs = [[-1.0] * len(response) for response in responses] if logprobs is None else logprobs
    return TrainBatch(
        tokens=torch.tensor([t for prompt, response in sequences for t in (*prompt, *response)], dtype=torch.int32),
        token_offsets=torch.tensor([0, *lengths]).cumsum(0),
        prompt_lengths=torch.tensor([len(prompt) for prompt, _ in sequences]),
        action_mask=torch.tensor([bool(m) for mask in masks for m in mask]),
        logprobs=torch.tensor([value for row in logprobs for value in row], dtype=torch.float32),
        rewards=torch.tensor([0.0] * len(sequences) if rewards is None else rewards, dtype=torch.float32),
        group_index=torch.tensor([0] * len(sequences) if groups is None else groups),
        temperature=temperature,
    )


def random_batch(seed: int, count: int = 8, *, holes: bool = True, temperature: float = 1.0) -> TrainBatch:
    """Sequences of 3 to 12 tokens in groups of 4; with `holes`, about a fifth of the response tokens is masked."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, size: int) -> list[int]:
        return torch.randint(low, high, (size,), generator=generator).tolist()

    shapes = list(zip(integers(1, 5, count), integers(2, 9, count), strict=True))
    masks = [[int(not holes or draw > 0) for draw in integers(0, 5, response)] for _, response in shapes]
    return make_batch(
        [(integers(0, VOCABULARY, prompt), integers(0, VOCABULARY, response)) for prompt, response in shapes],
        masks,
        [(-3 + torch.randn(response, generator=generator) / 2).tolist() for _, response in shapes],
        torch.randn(count, generator=generator).tolist(),
        [index // 4 for index in range(count)],
        temperature,
    )
