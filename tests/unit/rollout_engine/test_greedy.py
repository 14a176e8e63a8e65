"""Greedy decoding against `generate` of transformers, token for token."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from common.config.explorer import SamplingConfig
from tests.support.tiny_models import FAMILIES, VOCABULARY, tiny_engine, tiny_model

GREEDY = SamplingConfig(temperature=0.0, max_tokens=16)


def prompts(count: int = 4, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(2, VOCABULARY, size=generator.integers(1, 20)).tolist() for _ in range(count)]


def reference(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        pad_token_id=0,
        eos_token_id=1,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
async def test_greedy_tokens_are_those_of_transformers_generate(family: str) -> None:
    model = tiny_model(family)
    expected = [reference(model, prompt, GREEDY.max_tokens) for prompt in prompts()]
    engine = tiny_engine(model)
    try:
        results = await asyncio.gather(*(engine.generate(prompt, 1, GREEDY) for prompt in prompts()))
    finally:
        await engine.close()
    assert [completions[0].tokens.tolist() for completions in results] == expected


async def test_rows_that_end_early_and_late_joiners_leave_the_others_as_they_are() -> None:
    model = tiny_model("llama", seed=3)
    wanted = [(prompt, 1 + 4 * (place % 6)) for place, prompt in enumerate(prompts(16, seed=5))]
    expected = [reference(model, prompt, max_tokens) for prompt, max_tokens in wanted]
    # Four slots for sixteen prompts: most wait, and join when another row ends.
    engine = tiny_engine(model, explorer={"max_sequences": 4})
    try:
        results = await asyncio.gather(
            *(
                engine.generate(prompt, 1, SamplingConfig(temperature=0.0, max_tokens=max_tokens))
                for prompt, max_tokens in wanted
            )
        )
    finally:
        await engine.close()
    assert [completions[0].tokens.tolist() for completions in results] == expected
    assert len({len(tokens) for tokens in expected}) > 4


async def test_a_group_larger_than_all_slots_is_finished_by_parts() -> None:
    model = tiny_model("llama", seed=4)
    prompt = prompts(1)[0]
    engine = tiny_engine(model, explorer={"max_sequences": 3})
    try:
        completions = await engine.generate(prompt, 8, GREEDY)
    finally:
        await engine.close()
    assert [c.tokens.tolist() for c in completions] == [reference(model, prompt, GREEDY.max_tokens)] * 8


async def test_a_response_that_fills_the_context_is_truncated() -> None:
    model = tiny_model("llama", seed=7)
    prompt = prompts(1)[0][:3]
    engine = tiny_engine(model, model={"max_length": 8})
    try:
        [completion] = await engine.generate(prompt, 1, GREEDY)
    finally:
        await engine.close()
    expected = reference(model, prompt, 8 - len(prompt))
    assert completion.tokens.tolist() == expected
    assert completion.truncated == (expected[-1] != 1)


async def test_an_end_token_is_kept_in_the_tokens_and_left_out_of_the_text() -> None:
    model = tiny_model("llama", seed=3)
    by_end = {place: reference(model, prompt, 16) for place, prompt in enumerate(prompts(20, seed=9))}
    ended = [place for place, tokens in by_end.items() if tokens[-1] == 1 and len(tokens) > 1]
    assert ended
    engine = tiny_engine(model)
    try:
        [completion] = await engine.generate(prompts(20, seed=9)[ended[0]], 1, GREEDY)
    finally:
        await engine.close()
    assert completion.tokens[-1] == 1
    assert not completion.truncated
    assert len(completion.text) == len(completion.tokens) - sum(int(t) < 2 for t in completion.tokens)
