"""Drawing tokens: the distribution, the support, the behaviour logprobs."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from common.config.explorer import SamplingConfig
from explorer_service.engine.sampling import Knobs, draw
from tests.support.tiny_models import VOCABULARY, tiny_engine, tiny_model

PROMPT = [5, 9, 12, 3, 20]
SETTINGS = [(0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.9, 6, 0.7), (1.0, 1, 1.0), (1.0, 0, 1e-6)]


def exact(logits: Sequence[float], temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution by its definition, one token after the other, in float64."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    ranked = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    if top_k:
        ranked = ranked[:top_k]
    weights = np.exp(scaled[ranked] - scaled[ranked[0]])
    weights /= weights.sum()
    kept, mass = [], 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if kept and mass >= top_p:
            break
        kept.append(token)
        mass += weight
    result = np.zeros(len(scaled))
    result[kept] = weights[: len(kept)] / mass
    return result


def knobs(rows: int, temperature: float, top_k: int, top_p: float) -> Knobs:
    return Knobs(
        temperature=torch.full((rows,), temperature or 1.0),
        greedy=torch.full((rows,), temperature == 0),
        top_k=torch.full((rows,), top_k or 1000),
        top_p=torch.full((rows,), top_p if top_p < 1 else 2.0, dtype=torch.float64),
        any_greedy=temperature == 0,
        all_greedy=temperature == 0,
        truncates=top_k > 0 or top_p < 1,
    )


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_frequencies_are_those_of_the_exact_distribution(temperature: float, top_k: int, top_p: float) -> None:
    rows = 20_000
    logits = np.random.default_rng(1).normal(size=12) * 1.5
    uniforms = torch.from_numpy(np.random.default_rng(2).random(rows))
    tokens, logprobs = draw(
        torch.tensor(logits, dtype=torch.float32).expand(rows, -1), uniforms, knobs(rows, temperature, top_k, top_p)
    )
    expected = exact(logits, temperature, top_k, top_p)
    seen = np.bincount(tokens.numpy(), minlength=12)
    assert not seen[expected == 0].any()
    inside = expected > 0
    chi_square = ((seen - rows * expected)[inside] ** 2 / (rows * expected[inside])).sum()
    freedom = inside.sum() - 1
    # Mean + 5 standard deviations of the chi-square distribution.
    assert chi_square <= freedom + 5 * np.sqrt(2 * freedom)
    np.testing.assert_allclose(logprobs.numpy(), np.log(expected[tokens.numpy()]), atol=1e-5)


def test_uniforms_at_both_ends_stay_on_the_support() -> None:
    logits = torch.tensor([[-np.inf, 0.0, 1.0, -np.inf, 0.5, -np.inf]], dtype=torch.float32).expand(2, -1)
    tokens, logprobs = draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), knobs(2, 1.0, 0, 1.0))
    assert tokens.tolist() == [1, 4]
    assert logprobs.isfinite().all()


def test_a_greedy_row_among_sampled_ones_takes_the_likeliest_token_of_the_whole_distribution() -> None:
    logits = torch.tensor([[0.1, 2.0, 1.0, -1.0]] * 2)
    mixed = Knobs(
        temperature=torch.tensor([1.0, 0.5]),
        greedy=torch.tensor([True, False]),
        top_k=torch.tensor([1000, 2]),
        top_p=torch.tensor([2.0, 2.0], dtype=torch.float64),
        any_greedy=True,
        all_greedy=False,
        truncates=True,
    )
    tokens, logprobs = draw(logits, torch.tensor([0.99, 0.99], dtype=torch.float64), mixed)
    assert tokens.tolist() == [1, 2]
    np.testing.assert_allclose(
        logprobs.numpy(),
        [np.log(exact([0.1, 2.0, 1.0, -1.0], 1.0, 0, 1.0)[1]), np.log(exact([0.1, 2.0, 1.0, -1.0], 0.5, 2, 1.0)[2])],
        atol=1e-6,
    )


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.0, 0, 1.0), *SETTINGS[:4]])
async def test_logprobs_are_those_of_a_full_forward_pass(temperature: float, top_k: int, top_p: float) -> None:
    model = tiny_model(seed=3, scale=3.0)
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=12)
    engine = tiny_engine(model)
    try:
        completions = [
            *await engine.generate(PROMPT, 4, sampling, seed=1),
            *await engine.generate([*PROMPT, 7, 7], 4, sampling, seed=2),
        ]
    finally:
        await engine.close()
    prompts = [PROMPT] * 4 + [[*PROMPT, 7, 7]] * 4
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = [*prompt, *completion.tokens.tolist()]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].double().numpy()
        setting = (temperature or 1.0, top_k, top_p)
        wanted = [exact(row, *setting)[token] for row, token in zip(logits, completion.tokens, strict=True)]
        np.testing.assert_allclose(completion.logprobs, np.log(wanted), atol=1e-5)


async def test_first_tokens_of_a_big_group_have_the_policys_frequencies() -> None:
    model = tiny_model(seed=3, scale=3.0)
    engine = tiny_engine(model, explorer={"max_sequences": 1000})
    try:
        completions = await engine.generate(PROMPT, 4000, SamplingConfig(top_k=6, max_tokens=1), seed=11)
    finally:
        await engine.close()
    with torch.no_grad():
        expected = exact(model(input_ids=torch.tensor([PROMPT])).logits[0, -1].tolist(), 1.0, 6, 1.0)
    seen = np.bincount([completion.tokens[0] for completion in completions], minlength=VOCABULARY)
    inside = expected > 0
    assert seen[~inside].sum() == 0
    assert ((seen - 4000 * expected)[inside] ** 2 / (4000 * expected[inside])).sum() < 5 + 5 * np.sqrt(10)


async def test_a_seeds_tokens_do_not_depend_on_what_else_is_decoded() -> None:
    sampling = SamplingConfig(max_tokens=10)
    engine = tiny_engine(tiny_model(seed=3, scale=3.0))
    try:
        alone = await engine.generate(PROMPT, 3, sampling, seed=42)
        others = [engine.generate([2 + i, 9, 4 + i], 2, SamplingConfig(top_k=3, max_tokens=3 + i)) for i in range(8)]
        crowded, *_ = await asyncio.gather(engine.generate(PROMPT, 3, sampling, seed=42), *others)
        [single] = await engine.generate(PROMPT, 1, sampling, seed=42)
        different = await engine.generate(PROMPT, 3, sampling, seed=43)
    finally:
        await engine.close()
    assert [c.tokens.tolist() for c in crowded] == [c.tokens.tolist() for c in alone]
    assert single.tokens.tolist() == alone[0].tokens.tolist()
    assert len({tuple(c.tokens.tolist()) for c in (*alone, *different)}) == 6


async def test_two_explorers_without_seeds_draw_different_samples_and_the_same_one_draws_them_again() -> None:
    async def sample(explorer: str) -> list[list[int]]:
        engine = tiny_engine(tiny_model(seed=3, scale=3.0), explorer={"id": explorer})
        try:
            return [c.tokens.tolist() for c in await engine.generate(PROMPT, 4, SamplingConfig(max_tokens=8))]
        finally:
            await engine.close()

    first, again, other = await sample("a"), await sample("a"), await sample("b")
    assert first == again
    assert first != other
