from typing import Any

import pytest

from common.config.explorer import SamplingConfig
from common.errors import WorkflowFailed
from common.models.tokenizer import character_tokenizer
from explorer_service.workflows import Policy, Transcript
from tests.support.fake_policy import AnsweringEngine

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = "{{ messages[-1].content }}"
QUESTION = {"role": "user", "content": "two and two"}
HINT = {"role": "user", "content": "less"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = character_tokenizer("abcdefghijklmnopqrstuvwxyzTRM? \n.")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return made


def start(tokenizer: Any, template: str) -> tuple[Policy, Transcript]:
    tokenizer.chat_template = template
    policy = Policy(AnsweringEngine(lambda *_: "x"), tokenizer, SamplingConfig(), (0,))
    return policy, policy.start([QUESTION])


def test_messages_go_through_the_chat_template_with_the_reply_opened(tokenizer: Any) -> None:
    _, transcript = start(tokenizer, CHATML)
    text = "<|im_start|>user\ntwo and two<|im_end|>\n<|im_start|>assistant\n"
    assert transcript.prompt_text == text
    assert tokenizer.decode(transcript.tokens) == text
    # Special tokens are one token each: 3 of them, and the 28 characters between.
    assert len(transcript) == 3 + len("user\ntwo and two\nassistant\n")


@pytest.mark.parametrize("ended", [True, False])
def test_a_dialogue_grown_turn_by_turn_is_what_the_template_makes_of_it_as_a_whole(tokenizer: Any, ended: bool) -> None:
    policy, transcript = start(tokenizer, CHATML)
    reply = tokenizer.encode("five" + "<|im_end|>" * ended, add_special_tokens=False)
    transcript.add_observation(reply)
    assert policy.observe(transcript, [HINT])
    whole = [QUESTION, {"role": "assistant", "content": "five"}, HINT]
    text = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    assert transcript.tokens == tokenizer.encode(text, add_special_tokens=False)


def test_a_template_that_drops_replies_is_refused(tokenizer: Any) -> None:
    policy, transcript = start(tokenizer, FORGETFUL)
    with pytest.raises(WorkflowFailed, match="drops replies"):
        policy.observe(transcript, [HINT])
