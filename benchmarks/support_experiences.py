"""Experiences of a given size, and a configuration around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.config.root import TandemConfig
from common.experience.experience import Experience, ExperienceGroup

GROUP_SIZE = 8
VOCABULARY = 32_000


@dataclass(frozen=True)
class Size:
    """Of every experience."""

    prompt: int
    response: int

    @property
    def tokens(self) -> int:
        """Prompt and response."""
        return self.prompt + self.response

    @property
    def raw_bytes(self) -> int:
        """Of the tensors: int32 tokens; uint8 mask and float32 logprobs of the response; three numbers."""
        return 4 * self.tokens + 5 * self.response + 4 + 4 + 8


LONG = Size(200, 1000)
"""9.8 KB."""
SHORT = Size(24, 72)
"""0.8 KB."""


def made_group(ordinal: int, size: Size, rng: np.random.Generator) -> ExperienceGroup:
    """One group of random experiences."""
    experiences = [
        Experience(
            tokens=rng.integers(0, VOCABULARY, size.tokens, dtype=np.int32),
            prompt_length=size.prompt,
            action_mask=np.ones(size.response, np.uint8),
            logprobs=-rng.random(size.response, dtype=np.float32),
            reward=float(rng.random()),
            oldest_version=3,
            newest_version=3,
        )
        for _ in range(GROUP_SIZE)
    ]
    return ExperienceGroup(f"task/{ordinal}", ordinal, 1, 1, experiences, {"turns": 1.0})


def made_groups(count: int, size: Size) -> list[ExperienceGroup]:
    """Groups with the ordinals from 0 on."""
    rng = np.random.default_rng(7)
    return [made_group(ordinal, size, rng) for ordinal in range(count)]


def configured() -> TandemConfig:
    """The defaults, around a model that nobody loads."""
    return TandemConfig.model_validate({"model": {"path": "unused"}})
