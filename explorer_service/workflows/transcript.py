"""One growing token sequence: what the policy wrote, and what an environment wrote in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from common.errors import WorkflowFailed
from common.experience.experience import Experience, FloatArray, IntArray, MaskArray
from explorer_service.engine.base import Completion
from explorer_service.rewards.base import Score
from explorer_service.workflows.rollout import Rollout


class Transcript:
    """Tokens in, tokens out: what the policy sampled is kept as it was sampled, and never tokenized again.

    Re-tokenizing text can merge tokens across its seams, and then mask and logprobs no longer belong to the tokens.
    """

    def __init__(self, prompt: Sequence[int], prompt_text: str = "") -> None:
        if not len(prompt):
            raise WorkflowFailed("the prompt has no tokens")
        self.prompt_text = prompt_text
        self.response_text = ""
        self.truncated = False
        """Whether the newest completion was."""
        self._prompt_length = len(prompt)
        self._tokens: list[IntArray] = [np.asarray(prompt, np.int32)]
        self._mask: list[MaskArray] = []
        self._logprobs: list[FloatArray] = []
        self._completions: list[Completion] = []

    def __len__(self) -> int:
        return sum(len(piece) for piece in self._tokens)

    @property
    def tokens(self) -> list[int]:
        """Everything so far: the prompt of the next completion."""
        tokens: list[int] = np.concatenate(self._tokens).tolist()
        return tokens

    @property
    def last_token(self) -> int:
        """The newest token."""
        return int(self._tokens[-1][-1])

    def fork(self) -> Transcript:
        """A copy that grows on its own."""
        twin = copy(self)
        # Only the lists: the arrays in them never change.
        for name in ("_tokens", "_mask", "_logprobs", "_completions"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def add_completion(self, completion: Completion) -> None:
        """Appends what the policy sampled. Raises WorkflowFailed when that is nothing."""
        if not len(completion.tokens):
            raise WorkflowFailed("the engine sampled no token")
        self._append(completion.tokens, 1, completion.logprobs)
        self._completions.append(completion)
        self.truncated = completion.truncated
        self.response_text += completion.text

    def add_observation(self, tokens: Sequence[int], text: str = "") -> None:
        """Appends what an environment wrote: it is read by the policy and never trained."""
        if not len(tokens):
            return
        self._append(np.asarray(tokens, np.int32), 0, np.zeros(len(tokens), np.float32))
        self.response_text += text

    def finish(self, score: Score | float, metrics: Mapping[str, float] | None = None) -> Rollout:
        """The rollout, with this score. Its versions are those of the oldest and the newest completion."""
        if not self._completions:
            raise WorkflowFailed("the policy wrote nothing in this rollout")
        checked = score if isinstance(score, Score) else Score(score)
        experience = Experience(
            tokens=np.concatenate(self._tokens),
            prompt_length=self._prompt_length,
            action_mask=np.concatenate(self._mask),
            logprobs=np.concatenate(self._logprobs),
            reward=checked.reward,
            oldest_version=min(completion.oldest_version for completion in self._completions),
            newest_version=max(completion.newest_version for completion in self._completions),
            truncated=self.truncated,
            prompt_text=self.prompt_text,
            response_text=self.response_text,
        )
        run_epoch = min(completion.run_epoch for completion in self._completions)
        return Rollout((experience,), run_epoch, {**checked.metrics, **(metrics or {})})

    def _append(self, tokens: IntArray, mask: int, logprobs: FloatArray) -> None:
        self._tokens.append(tokens)
        self._mask.append(np.full(len(tokens), mask, np.uint8))
        self._logprobs.append(logprobs)
