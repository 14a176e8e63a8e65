"""Stop strings."""

import asyncio

import pytest

from common.config.explorer import SamplingConfig
from common.models.tokenizer import character_tokenizer
from explorer_service.engine import stops
from tests.support.tiny_models import CHARACTERS, tiny_engine, tiny_model

PROMPT = [5, 9, 12, 3, 20]


async def test_a_stop_string_ends_a_response_at_the_token_that_completes_it() -> None:
    engine = tiny_engine(tiny_model(seed=3, scale=3.0))
    tokenizer = character_tokenizer(CHARACTERS)
    try:
        free = await engine.generate(PROMPT, 8, SamplingConfig(max_tokens=20), seed=5)
        long = next(c for c in free if len(c.text) > 12)
        stop = long.text[6:8]
        place = long.text.index(stop)
        stopped, unbothered = await asyncio.gather(
            engine.generate(PROMPT, 8, SamplingConfig(max_tokens=20, stop=(stop, "@@")), seed=5),
            engine.generate(PROMPT, 8, SamplingConfig(max_tokens=20), seed=5),
        )
    finally:
        await engine.close()
    assert [c.tokens.tolist() for c in unbothered] == [c.tokens.tolist() for c in free]
    ended = stopped[next(i for i, c in enumerate(free) if c is long)]
    assert ended.text == long.text[:place]
    assert tokenizer.decode(ended.tokens.tolist(), skip_special_tokens=True).endswith(stop)
    assert ended.tokens.tolist() == long.tokens.tolist()[: len(ended.tokens)]
    assert len(ended.logprobs) == len(ended.tokens)
    assert not ended.truncated
    for with_stop, without in zip(stopped, free, strict=True):
        if stop not in without.text:
            assert with_stop.tokens.tolist() == without.tokens.tolist()


@pytest.mark.parametrize(
    ("text", "strings", "expected"),
    [("abcdef", ("cd",), "ab"), ("abcdef", ("ef", "bc"), "a"), ("abc", ("x",), "abc"), ("abc", (), "abc")],
)
def test_text_is_cut_before_the_first_stop_string(text: str, strings: tuple[str, ...], expected: str) -> None:
    assert stops.cut(text, strings) == expected


def test_the_window_holds_a_stop_string_of_one_byte_tokens() -> None:
    assert stops.window(("ab", "\N{HIRAGANA LETTER A}")) >= 3
