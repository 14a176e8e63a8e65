"""Rows, slots and the waiting line: bookkeeping against a plain model of it."""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.explorer import SamplingConfig
from common.config.root import TandemConfig
from common.errors import ConfigError
from explorer_service.engine.batch import DecodeBatch, Sample
from explorer_service.engine.registry import make_engine
from explorer_service.engine.requests import Reply, Request
from explorer_service.engine.slot_cache import SlotCache
from explorer_service.engine.slot_model import SlotModel
from explorer_service.engine.torch_engine import TorchRolloutEngine
from explorer_service.engine.waiting import PREFILL_TOKENS, WaitingLine
from tests.support.tiny_models import engine_config, tiny_model

NO_END = torch.zeros(100, dtype=torch.bool)


def request(prompt_length: int, n: int, *, limit: int = 4, token: int = 5) -> Request:
    prompt = np.full(prompt_length, token, dtype=np.int32)
    return Request(prompt, n, SamplingConfig(), limit, 0, Reply())


def run(test: object) -> None:
    """Replies belong to a running event loop."""

    async def inside() -> None:
        test()  # type: ignore[operator]

    asyncio.run(inside())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.sets(st.integers(0, 20))), min_size=1, max_size=8))
def test_rows_keep_their_own_state_however_others_come_and_go(moves: list[tuple[int, set[int]]]) -> None:
    def check() -> None:
        batch = DecodeBatch(torch.device("cpu"))
        written: dict[int, list[int]] = {}
        token = 0
        for joining, leaving in moves:
            first = len(batch)
            batch.append([Sample(request(2 + joining, 1, limit=50), 0, 0, 0) for _ in range(joining)])
            for sample in batch.samples[first:]:
                written[id(sample)] = []
            for _ in range(2):
                fresh = torch.arange(token, token + len(batch)) % 100
                token += len(batch)
                batch.record(0, fresh, -fresh.float(), NO_END)
                batch.advance()
                for sample, value in zip(batch.samples, fresh.tolist(), strict=True):
                    written[id(sample)].append(value)
            assert batch.longest == int(batch.length.max())
            rows = list(range(len(batch)))
            counts, tokens, logprobs = batch.responses(rows)
            for row, sample in enumerate(batch.samples):
                assert tokens[row, : counts[row]].tolist() == written[id(sample)]
                assert (-logprobs[row, : counts[row]]).tolist() == written[id(sample)]
                assert batch.length[row] == len(sample.request.prompt) + counts[row]
            gone = sorted(leaving & set(rows))
            stay = {id(sample) for row, sample in enumerate(batch.samples) if row not in gone}
            batch.remove(gone)
            assert {id(sample) for sample in batch.samples} == stay
            if not len(batch):
                assert batch.longest == 0

    run(check)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 12)), min_size=1, max_size=10),
    st.integers(1, 16),
)
def test_the_line_admits_everything_once_in_order_within_its_bounds(wanted: list[tuple[int, int]], slots: int) -> None:
    def check() -> None:
        line = WaitingLine()
        requests = [request(length, n, token=place) for place, (length, n) in enumerate(wanted)]
        for each in requests:
            line.join(each)
        admitted: list[tuple[int, int]] = []
        while line:
            admission = line.admit(slots, slots)
            assert admission is not None
            assert len(admission.samples) <= slots
            longest = max(len(prompt) for prompt in admission.prompts)
            assert len(admission.prompts) == 1 or longest * len(admission.prompts) <= PREFILL_TOKENS
            for (owner, sample), place in zip(admission.samples, admission.prompt_index, strict=True):
                assert admission.prompts[place].tolist() == owner.prompt.tolist()
                admitted.append((requests.index(owner), sample))
        assert admitted == [(place, sample) for place, (_, n) in enumerate(wanted) for sample in range(n)]

    run(check)


async def test_equal_prompts_that_are_admitted_together_are_read_once() -> None:
    line = WaitingLine()
    for each in (request(3, 2), request(3, 1), request(4, 1)):
        line.join(each)
    admission = line.admit(8, 8)
    assert admission is not None
    assert len(admission.prompts) == 2
    assert admission.prompt_index == [0, 0, 0, 1]


async def test_a_trickle_of_free_slots_does_not_read_a_big_groups_prompt_again_for_each() -> None:
    line = WaitingLine()
    line.join(request(3, 64))
    assert line.admit(1, 64) is None
    admission = line.admit(8, 64)
    assert admission is not None
    assert len(admission.samples) == 8


def test_one_long_prompt_does_not_keep_all_slots_long_for_ever() -> None:
    cache = SlotCache()
    states = torch.randn(1, 2, 1000, 4)
    cache.plan_prompts(0, torch.tensor([0]), 1000, 1001)
    cache.update(states, states, 0)
    assert cache.layers[0].keys.shape == (1, 2, 1008, 4)
    cache.plan_prompts(0, torch.zeros(8, dtype=torch.long), 10, 11)
    cache.update(states[:, :, :10], states[:, :, :10], 0)
    assert cache.layers[0].keys.shape == (8, 2, 16, 4)


@torch.no_grad()
def test_the_head_sees_only_the_last_token_of_each_prompt() -> None:
    model = tiny_model()
    slot_model = SlotModel(model, torch.device("cpu"))
    shapes: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda _m, inputs, _o: shapes.append(inputs[0].shape))
    prompts = [np.arange(2, 2 + length, dtype=np.int32) for length in (7, 3)]
    slot_model.prefill(prompts, torch.tensor([0, 1]), 0)
    assert shapes == [torch.Size([2, 1, 32])]


async def test_engines_are_made_by_name() -> None:
    engine = make_engine(engine_config(model={"architecture": {"model_type": "llama", **TINY}, "max_length": 64}))
    assert isinstance(engine, TorchRolloutEngine)
    await engine.close()
    with pytest.raises(ConfigError, match="torch"):
        make_engine(_with_engine("torhc"))


TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _with_engine(name: str) -> TandemConfig:
    return engine_config(explorer={"engine": name})
