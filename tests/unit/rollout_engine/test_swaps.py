"""Weight swaps between two decode steps."""

import asyncio
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from common.config.explorer import SamplingConfig
from common.errors import ManifestMismatch, NonFiniteWeights, WaitTimedOut
from common.models.causal_lm import rollout_state
from common.weights.manifest import build_manifest
from tests.support.gates import Gate, eventually
from tests.support.tiny_models import tiny_engine, tiny_model

PROMPT = [5, 9, 12, 3, 20]
GREEDY = SamplingConfig(temperature=0.0, max_tokens=12)


def weights(seed: int, family: str = "llama") -> dict[str, torch.Tensor]:
    state = rollout_state(tiny_model(family, seed=seed), torch.float32)
    return {name: tensor.clone() for name, tensor in state.items()}


@torch.no_grad()
def greedy(policies: list[Any], prompt: list[int]) -> list[int]:
    """Greedy tokens by hand, one policy a token, over one cache that all of them write to."""
    cache = DynamicCache()
    step = torch.tensor([prompt])
    tokens: list[int] = []
    for policy in policies:
        logits = policy(input_ids=step, cache=cache, use_cache=True).logits
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] == 1:
            break
        step = torch.tensor([[tokens[-1]]])
    return tokens


async def test_a_swap_falls_between_two_tokens_of_a_running_sequence() -> None:
    old, new, live = tiny_model(seed=1), tiny_model(seed=2), tiny_model(seed=1)
    expected = greedy([old] * 4 + [new] * 8, PROMPT)
    assert len(expected) > 6
    assert expected != greedy([old] * 12, PROMPT)
    engine = tiny_engine(live)
    try:
        assert engine.version == (0, 0)
        gate = Gate(live, at=4)
        running = asyncio.create_task(engine.generate(PROMPT, 2, GREEDY))
        await gate.reached()
        swap = asyncio.create_task(engine.apply(weights(2), 1, 7))
        await eventually(lambda: engine._thread._inbox)
        gate.open()
        completions = await running
        assert await swap == build_manifest(weights(2)).manifest_hash
        assert engine.version == (1, 7)
    finally:
        await engine.close()
    for completion in completions:
        assert completion.tokens.tolist() == expected
        assert (completion.oldest_version, completion.newest_version, completion.run_epoch) == (0, 7, 0)


async def test_a_prompt_read_with_old_weights_is_read_again_after_a_swap() -> None:
    new = tiny_model(seed=2)
    engine = tiny_engine(tiny_model(seed=1))
    try:
        await engine.generate(PROMPT, 2, GREEDY)
        await engine.apply(weights(2), 3, 1)
        [completion] = await engine.generate(PROMPT, 1, GREEDY)
    finally:
        await engine.close()
    assert completion.tokens.tolist() == greedy([new] * 12, PROMPT)
    assert (completion.oldest_version, completion.newest_version, completion.run_epoch) == (1, 1, 3)


async def test_samples_of_a_group_that_start_after_a_swap_use_only_the_new_weights() -> None:
    live, new = tiny_model(seed=1), tiny_model(seed=2)
    engine = tiny_engine(live, explorer={"max_sequences": 1})
    try:
        gate = Gate(live, at=2)
        running = asyncio.create_task(engine.generate(PROMPT, 2, GREEDY))
        await gate.reached()
        swap = asyncio.create_task(engine.apply(weights(2), 1, 1))
        await eventually(lambda: engine._thread._inbox)
        gate.open()
        first, second = await running
        await swap
    finally:
        await engine.close()
    assert (first.oldest_version, first.newest_version) == (0, 1)
    assert (second.oldest_version, second.newest_version) == (1, 1)
    assert second.tokens.tolist() == greedy([new] * 12, PROMPT)


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
async def test_tied_weights_are_swapped_together(family: str) -> None:
    live = tiny_model(family, seed=1)
    assert live.get_input_embeddings().weight is live.get_output_embeddings().weight
    engine = tiny_engine(live)
    try:
        await engine.apply(weights(2, family), 1, 1)
        [completion] = await engine.generate(PROMPT, 1, GREEDY)
    finally:
        await engine.close()
    assert live.get_input_embeddings().weight is live.get_output_embeddings().weight
    assert completion.tokens.tolist() == greedy([tiny_model(family, seed=2)] * 12, PROMPT)


@pytest.mark.parametrize("fault", ["missing", "extra", "shape", "dtype", "nan", "inf"])
async def test_unfit_weights_are_refused_and_touch_nothing(fault: str) -> None:
    engine = tiny_engine(tiny_model(seed=1))
    before = engine.layout
    bad = weights(2)
    # The last by name, so that a check that stops half way would have copied the others already.
    name = max(bad)
    match fault:
        case "missing":
            del bad[name]
        case "extra":
            bad["zzz"] = torch.zeros(1)
        case "shape":
            bad[name] = bad[name][..., :-1]
        case "dtype":
            bad[name] = bad[name].to(torch.bfloat16)
        case "nan" | "inf":
            bad[name].view(-1)[-1] = float(fault)
    try:
        with pytest.raises(NonFiniteWeights if fault in {"nan", "inf"} else ManifestMismatch):
            await engine.apply(bad, 1, 1)
        assert engine.version == (0, 0)
        assert build_manifest(rollout_state(engine._thread._model.model, torch.float32)) == before
        [completion] = await engine.generate(PROMPT, 1, GREEDY)
    finally:
        await engine.close()
    assert completion.tokens.tolist() == greedy([tiny_model(seed=1)] * 12, PROMPT)


async def test_a_swap_that_gets_no_gap_in_time_is_withdrawn() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live, sync={"timeout": 0.05})
    try:
        gate = Gate(live, at=2)
        running = asyncio.create_task(engine.generate(PROMPT, 1, GREEDY))
        await gate.reached()
        with pytest.raises(WaitTimedOut):
            await engine.apply(weights(2), 1, 1)
        gate.open()
        [completion] = await running
        assert engine.version == (0, 0)
    finally:
        await engine.close()
    assert completion.tokens.tolist() == greedy([tiny_model(seed=1)] * 12, PROMPT)


async def test_bfloat16_weights_keep_their_dtype_and_hash() -> None:
    state = {name: tensor.to(torch.bfloat16) for name, tensor in weights(2).items()}
    engine = tiny_engine(tiny_model(seed=1, dtype=torch.bfloat16), model={"rollout_dtype": "bfloat16"})
    try:
        assert {entry.dtype for entry in engine.layout.tensors} == {"BF16"}
        assert await engine.apply(state, 1, 1) == build_manifest(state).manifest_hash
        assert engine.layout_hash == build_manifest(state).layout_hash
        assert len(await engine.generate(PROMPT, 3, SamplingConfig(max_tokens=4))) == 3
    finally:
        await engine.close()


async def test_weights_that_change_while_they_wait_break_the_engine_rather_than_run() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live)
    try:
        gate = Gate(live, at=2)
        running = asyncio.create_task(engine.generate(PROMPT, 1, GREEDY))
        await gate.reached()
        new = weights(2)
        swap = asyncio.create_task(engine.apply(new, 1, 1))
        await eventually(lambda: engine._thread._inbox)
        new[min(new)].add_(1.0)
        gate.open()
        for result in await asyncio.gather(swap, running, return_exceptions=True):
            assert isinstance(result, ManifestMismatch)
        assert engine.version == (0, 0)
        with pytest.raises(ManifestMismatch):
            await engine.generate(PROMPT, 1, GREEDY)
    finally:
        await engine.close()


async def test_a_cancelled_swap_is_withdrawn() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live)
    try:
        gate = Gate(live, at=2)
        running = asyncio.create_task(engine.generate(PROMPT, 1, GREEDY))
        await gate.reached()
        swap = asyncio.create_task(engine.apply(weights(2), 1, 1))
        await eventually(lambda: engine._thread._inbox)
        swap.cancel()
        await asyncio.wait([swap], timeout=30)
        gate.open()
        [completion] = await running
        assert swap.cancelled()
        assert engine.version == (0, 0)
    finally:
        await engine.close()
    assert completion.tokens.tolist() == greedy([tiny_model(seed=1)] * 12, PROMPT)
