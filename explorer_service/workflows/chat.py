"""Chat prompts, and what follows a reply in a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from common.errors import WorkflowFailed
from explorer_service.tasksets.base import Message, Prompt

# Stands for a reply in a rendered chat: letters only, which templates leave alone.
_MARKER = "TandemReplyMarker"


class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that workflows use."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The text's tokens."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The tokens' text."""

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any:
        """The conversation as text, when `tokenize` is False."""


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text's tokens alone: no BOS or other special token is added to what stands there."""
    return tokenizer.encode(text, add_special_tokens=False)


def render_prompt(tokenizer: Tokenizer, prompt: Prompt) -> str:
    """The text that the policy is given: a text as it is, messages through the chat template with the reply opened."""
    if isinstance(prompt, str):
        return prompt
    return _render(tokenizer, prompt)


def encode_observation(tokenizer: Tokenizer, messages: Sequence[Message], last_token: int) -> tuple[list[int], str]:
    """Tokens and text that lead from the end of a reply over these messages to the start of the next reply.

    The template's own end of a reply is taken along, but for its first token where the policy already wrote it
    (`last_token`). Raises WorkflowFailed for a template that rewrites replies.
    """
    start = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER}]
    text = _render(tokenizer, [*start, *messages])
    _, found, tail = text.partition(_MARKER)
    if not found:
        raise WorkflowFailed("the chat template drops replies: this workflow needs one that keeps them")
    tokens = encode_text(tokenizer, tail)
    return (tokens[1:] if tokens[:1] == [last_token] else tokens), tail


def _render(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    conversation = [dict(message) for message in messages]
    # As text, and tokenized here: a template writes its special tokens itself.
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
