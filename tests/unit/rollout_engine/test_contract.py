"""The contract of `RolloutEngine`, held by every implementation."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import numpy as np
import pytest
import torch

from common.config.explorer import SamplingConfig
from common.errors import LimitExceeded, MalformedData, ManifestMismatch, NonFiniteWeights, ShuttingDown
from common.models.causal_lm import rollout_state
from common.weights.manifest import build_manifest
from explorer_service.engine.base import Completion, RolloutEngine
from tests.support.engines import ScriptedRolloutEngine
from tests.support.gates import eventually
from tests.support.tiny_models import tiny_engine, tiny_model

PROMPT = [5, 9, 12, 3, 20]
SAMPLING = SamplingConfig(max_tokens=6)


@dataclasses.dataclass
class Subject:
    engine: RolloutEngine
    tensors: dict[str, torch.Tensor]
    """Weights as they are at start."""


@pytest.fixture(params=["torch", "scripted"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "torch":
        model = tiny_model(seed=1, scale=3.0)
        tensors = {name: tensor.clone() for name, tensor in rollout_state(model, torch.float32).items()}
        made = Subject(tiny_engine(model), tensors)
    else:
        tensors = {"a": torch.ones(2, 3), "b": torch.zeros(4)}
        made = Subject(ScriptedRolloutEngine(tensors=tensors, max_length=128, token_seconds=0.001), tensors)
    try:
        yield made
    finally:
        await made.engine.close()


def fields(completion: Completion) -> tuple[object, ...]:
    return (completion.tokens.tolist(), completion.logprobs.tolist(), completion.text, completion.truncated)


async def test_a_call_gives_n_completions_of_the_promised_types(subject: Subject) -> None:
    completions = await subject.engine.generate(PROMPT, 3, SAMPLING, seed=1)
    assert len(completions) == 3
    for completion in completions:
        assert completion.tokens.dtype == np.int32
        assert completion.logprobs.dtype == np.float32
        assert completion.tokens.shape == completion.logprobs.shape
        assert 1 <= len(completion.tokens) <= SAMPLING.max_tokens
        assert (completion.logprobs <= 0).all()
        assert (completion.oldest_version, completion.newest_version, completion.run_epoch) == (0, 0, 0)


async def test_the_same_seed_gives_the_same_completions(subject: Subject) -> None:
    first = await subject.engine.generate(PROMPT, 3, SAMPLING, seed=1)
    again = await subject.engine.generate(PROMPT, 3, SAMPLING, seed=1)
    assert [fields(c)[0] for c in first] == [fields(c)[0] for c in again]


async def test_max_tokens_truncates(subject: Subject) -> None:
    completions = await subject.engine.generate(PROMPT, 4, SamplingConfig(max_tokens=1), seed=1)
    assert all(len(c.tokens) == 1 for c in completions)
    assert all(c.truncated == (c.tokens[-1] != 1) for c in completions)


async def test_concurrent_calls_all_get_their_answers(subject: Subject) -> None:
    results = await asyncio.gather(*(subject.engine.generate(PROMPT[: 1 + i % 5], 2, SAMPLING) for i in range(20)))
    assert [len(completions) for completions in results] == [2] * 20


async def test_the_layout_is_the_manifest_of_the_live_weights(subject: Subject) -> None:
    assert subject.engine.layout == build_manifest(subject.tensors)
    assert subject.engine.layout_hash == subject.engine.layout.layout_hash


async def test_applied_weights_are_live_stamped_and_hashed(subject: Subject) -> None:
    new = {name: tensor + 0.5 for name, tensor in subject.tensors.items()}
    layout_hash = subject.engine.layout_hash
    assert subject.engine.version == (0, 0)
    assert await subject.engine.apply(new, 2, 9) == build_manifest(new).manifest_hash
    assert subject.engine.version == (2, 9)
    assert subject.engine.layout == build_manifest(new)
    assert subject.engine.layout_hash == layout_hash
    [completion] = await subject.engine.generate(PROMPT, 1, SAMPLING)
    assert (completion.oldest_version, completion.newest_version, completion.run_epoch) == (9, 9, 2)


async def test_the_callers_tensors_stay_its_own(subject: Subject) -> None:
    new = {name: tensor + 0.5 for name, tensor in subject.tensors.items()}
    promised = await subject.engine.apply(new, 1, 1)
    for tensor in new.values():
        tensor.zero_()
    assert subject.engine.layout.manifest_hash == promised
    assert await subject.engine.apply(subject.tensors, 1, 2) == build_manifest(subject.tensors).manifest_hash


async def test_unfit_weights_change_nothing(subject: Subject) -> None:
    before = subject.engine.layout
    name = max(subject.tensors)
    with pytest.raises(ManifestMismatch):
        await subject.engine.apply({**subject.tensors, "unknown": torch.zeros(1)}, 1, 1)
    with pytest.raises(NonFiniteWeights):
        await subject.engine.apply({**subject.tensors, name: torch.full_like(subject.tensors[name], torch.inf)}, 1, 1)
    assert subject.engine.version == (0, 0)
    assert subject.engine.layout == before


async def test_impossible_calls_are_refused(subject: Subject) -> None:
    with pytest.raises(LimitExceeded):
        await subject.engine.generate([], 1, SAMPLING)
    with pytest.raises(LimitExceeded):
        await subject.engine.generate([2] * 128, 1, SAMPLING)
    with pytest.raises(MalformedData):
        await subject.engine.generate([2, -1], 1, SAMPLING)
    with pytest.raises(MalformedData):
        await subject.engine.generate(PROMPT, 0, SAMPLING)


async def test_cancelling_frees_the_sequences(subject: Subject) -> None:
    call = asyncio.create_task(subject.engine.generate(PROMPT * 4, 4, SamplingConfig(max_tokens=100)))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(await subject.engine.generate(PROMPT, 1, SAMPLING)) == 1
    await eventually(lambda: subject.engine.statistics().running_sequences == 0)


async def test_statistics_count_tokens(subject: Subject) -> None:
    before = subject.engine.statistics()
    completions = await subject.engine.generate(PROMPT, 4, SAMPLING)
    after = subject.engine.statistics()
    assert after.generated_tokens - before.generated_tokens == sum(len(c.tokens) for c in completions)
    assert after.decode_seconds >= before.decode_seconds


async def test_closing_fails_pending_and_later_calls(subject: Subject) -> None:
    pending = asyncio.create_task(subject.engine.generate(PROMPT * 4, 64, SamplingConfig(max_tokens=100)))
    await asyncio.sleep(0)
    await subject.engine.close()
    with pytest.raises(ShuttingDown):
        await pending
    with pytest.raises(ShuttingDown):
        await subject.engine.generate(PROMPT, 1, SAMPLING)
    with pytest.raises(ShuttingDown):
        await subject.engine.apply(subject.tensors, 1, 1)
    await subject.engine.close()
