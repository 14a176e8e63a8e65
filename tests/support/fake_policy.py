"""A tokenizer of one token a character, and an engine that answers by a function of the prompt's text."""

import asyncio
from collections.abc import Callable, Sequence
from types import EllipsisType

import numpy as np

from common.config.explorer import SamplingConfig
from explorer_service.engine.base import Completion

END = 1
"""The end token that a finished completion carries."""


class CharacterTokenizer:
    """Token = code point; it fails a test that asks for special tokens."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != END or not skip_special_tokens)

    def apply_chat_template(self, conversation: object, *, tokenize: bool, add_generation_prompt: bool) -> str:
        raise AssertionError("no chat here")


class AnsweringEngine:
    """`answer(text, call, sample)` gives the text of a continuation; an exception is raised, `...` hangs.

    Token k of a continuation has logprob -(k + 1) / 8, so that a test can tell where each of them ends up.
    """

    def __init__(
        self, answer: Callable[[str, int, int], str | EllipsisType], version: int = 7, run_epoch: int = 2
    ) -> None:
        self._answer = answer
        self.version = version
        self.run_epoch = run_epoch
        self.calls: list[tuple[str, int, SamplingConfig, int | None]] = []
        self.cancelled = 0

    async def generate(
        self, prompt: Sequence[int], n: int, sampling: SamplingConfig, seed: int | None = None
    ) -> list[Completion]:
        assert all(type(token) is int for token in prompt)
        text = "".join(chr(token) for token in prompt if token != END)
        self.calls.append((text, n, sampling, seed))
        call = len(self.calls) - 1
        answers = [self._answer(text, call, sample) for sample in range(n)]
        try:
            await (asyncio.Event().wait() if ... in answers else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [self._completion(str(answer), sampling.max_tokens) for answer in answers]

    def _completion(self, text: str, max_tokens: int) -> Completion:
        tokens = [*map(ord, text), END][:max_tokens]
        truncated = tokens[-1:] != [END]
        return Completion(
            tokens=np.array(tokens, np.int32),
            logprobs=np.arange(1, len(tokens) + 1, dtype=np.float32) / np.float32(-8),
            oldest_version=self.version,
            newest_version=self.version,
            run_epoch=self.run_epoch,
            truncated=truncated,
            text=text[:max_tokens],
        )
