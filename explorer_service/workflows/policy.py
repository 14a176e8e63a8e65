"""What a workflow sees of the model."""

from __future__ import annotations

from collections.abc import Sequence

from common.config.explorer import SamplingConfig
from common.errors import WorkflowFailed
from explorer_service.engine.base import Completion, RolloutEngine
from explorer_service.tasksets.base import Message, Prompt
from explorer_service.workflows.chat import Tokenizer, encode_observation, encode_text, render_prompt
from explorer_service.workflows.seeds import derive_seed
from explorer_service.workflows.transcript import Transcript


class Policy:
    """Samples for one rollout. Its seeds depend on `seed_key` and the number of the call alone."""

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        sampling: SamplingConfig,
        seed_key: tuple[int | str, ...],
        max_length: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.sampling = sampling
        self._engine = engine
        self._seed_key = seed_key
        self._max_length = max_length
        self._calls = 0

    def start(self, prompt: Prompt) -> Transcript:
        """A new transcript of a task's prompt.

        A text is tokenized as it is, without BOS or other special tokens; messages go through the tokenizer's chat
        template. Raises WorkflowFailed when it leaves no room for a reply.
        """
        text = render_prompt(self.tokenizer, prompt)
        transcript = Transcript(encode_text(self.tokenizer, text), text)
        if not self._has_room(len(transcript)):
            raise WorkflowFailed(f"the prompt has {len(transcript)} tokens, model.max_length is {self._max_length}")
        return transcript

    async def reply(self, transcript: Transcript) -> str:
        """Samples one continuation, appends it, and returns its text without end tokens and stop strings."""
        (completion,) = await self.generate(transcript.tokens)
        transcript.add_completion(completion)
        return completion.text

    def observe(self, transcript: Transcript, observation: str | Sequence[Message]) -> bool:
        """Appends what an environment says: a text as it is, or messages in the form of the chat template.

        False, and nothing is appended, where that would leave the context no room for a reply.
        """
        if isinstance(observation, str):
            tokens, text = encode_text(self.tokenizer, observation), observation
        else:
            tokens, text = encode_observation(self.tokenizer, observation, transcript.last_token)
        if not self._has_room(len(transcript) + len(tokens)):
            return False
        transcript.add_observation(tokens, text)
        return True

    async def generate(
        self, tokens: Sequence[int], n: int = 1, *, max_tokens: int | None = None, stop: Sequence[str] | None = None
    ) -> list[Completion]:
        """`n` continuations of these tokens, which share the work on them.

        Only length and stop strings can differ from the configured sampling: the trainer compares logprobs at the
        configured temperature. Raises WorkflowFailed when the engine returns another number of them.
        """
        update: dict[str, object] = {} if max_tokens is None else {"max_tokens": max_tokens}
        if stop is not None:
            update["stop"] = tuple(stop)
        seed = derive_seed(*self._seed_key, self._calls)
        self._calls += 1
        completions = await self._engine.generate(tokens, n, self.sampling.model_copy(update=update), seed)
        if len(completions) != n:
            raise WorkflowFailed(f"the engine returned {len(completions)} continuations instead of {n}")
        return completions

    def _has_room(self, tokens: int) -> bool:
        return self._max_length is None or tokens < self._max_length
