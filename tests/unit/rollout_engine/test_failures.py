"""Cancellation, shutting down, running out of memory, and models that break."""

import asyncio
import threading
from typing import Any

import pytest
import torch

from common.config.explorer import SamplingConfig
from common.errors import ConfigError, ShuttingDown, TandemError
from explorer_service.engine.torch_engine import TorchRolloutEngine
from tests.support.gates import Gate, eventually
from tests.support.tiny_models import tiny_engine, tiny_model

PROMPT = [5, 9, 12, 3, 20]
GREEDY = SamplingConfig(temperature=0.0, max_tokens=10)


async def greedy(engine: TorchRolloutEngine, prompt: list[int]) -> list[int]:
    [completion] = await engine.generate(prompt, 1, GREEDY)
    return completion.tokens.tolist()


async def test_cancelling_frees_running_and_waiting_sequences_and_leaves_others_right() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live, explorer={"max_sequences": 4})
    try:
        alone = await greedy(engine, [4, 4, 8])
        gate = Gate(live, at=2)
        doomed = asyncio.create_task(engine.generate(PROMPT, 3, SamplingConfig(max_tokens=100)))
        kept = asyncio.create_task(greedy(engine, [4, 4, 8]))
        waiting = asyncio.create_task(engine.generate(PROMPT, 30, SamplingConfig(max_tokens=100)))
        await gate.reached()
        doomed.cancel()
        waiting.cancel()
        await asyncio.wait([doomed, waiting], timeout=30)
        gate.open()
        assert await kept == alone
        await eventually(lambda: engine.statistics().running_sequences == 0)
        assert doomed.cancelled()
        assert waiting.cancelled()
        assert not engine._thread._line
    finally:
        await engine.close()


async def test_closing_fails_what_is_pending_and_what_comes_later() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live, explorer={"max_sequences": 1})
    gate = Gate(live, at=2)
    pending = [asyncio.create_task(engine.generate(PROMPT, 2, GREEDY)) for _ in range(3)]
    await gate.reached()
    closing = asyncio.create_task(engine.close())
    await eventually(lambda: engine._thread._closing)
    gate.open()
    await closing
    for result in await asyncio.gather(*pending, return_exceptions=True):
        assert isinstance(result, ShuttingDown)
    with pytest.raises(ShuttingDown):
        await engine.generate(PROMPT, 1, GREEDY)
    with pytest.raises(ShuttingDown):
        await engine.apply(engine_weights(engine), 1, 1)
    await engine.close()
    assert engine.statistics().running_sequences == 0


def engine_weights(engine: TorchRolloutEngine) -> dict[str, torch.Tensor]:
    state = engine._thread._model.model.state_dict()
    return {entry.name: state[entry.name].clone() for entry in engine.layout.tensors}


async def test_an_error_in_the_thread_reaches_every_pending_and_later_call() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live, explorer={"max_sequences": 2})

    def explode(*_: Any) -> None:
        raise ValueError("the model broke")

    live.register_forward_pre_hook(explode)
    pending = [engine.generate(PROMPT, 2, GREEDY) for _ in range(4)]
    for result in await asyncio.gather(*pending, return_exceptions=True):
        assert isinstance(result, ValueError)
    with pytest.raises(ValueError, match="the model broke"):
        await engine.generate(PROMPT, 1, GREEDY)
    with pytest.raises(ValueError, match="the model broke"):
        await engine.apply(engine_weights(engine), 1, 1)
    await engine.close()


class Memory:
    """Raises as the allocator would when a pass has more rows than fit."""

    def __init__(self, model: Any, rows: int) -> None:
        self.rows = rows
        self.raised = 0
        model.register_forward_pre_hook(self._before, with_kwargs=True)

    def _before(self, _model: Any, _arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if named["input_ids"].shape[0] > self.rows:
            self.raised += 1
            raise torch.OutOfMemoryError("CUDA out of memory")


async def test_out_of_memory_goes_on_with_fewer_sequences_and_the_same_tokens() -> None:
    live = tiny_model(seed=1, scale=3.0)
    engine = tiny_engine(live, explorer={"max_sequences": 16})
    sampling = SamplingConfig(max_tokens=8)
    try:
        expected = await engine.generate(PROMPT, 16, sampling, seed=9)
        memory = Memory(live, rows=3)
        squeezed = await engine.generate(PROMPT, 16, sampling, seed=9)
    finally:
        await engine.close()
    assert memory.raised
    assert engine._thread._limit <= 3
    assert [c.tokens.tolist() for c in squeezed] == [c.tokens.tolist() for c in expected]


async def test_out_of_memory_with_one_sequence_fails_that_call_and_not_the_engine() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live)
    try:
        expected = await greedy(engine, PROMPT)
        memory = Memory(live, rows=0)
        with pytest.raises(TandemError, match="out of memory"):
            await engine.generate(PROMPT, 5, GREEDY)
        memory.rows = 1000
        assert await greedy(engine, PROMPT) == expected
    finally:
        await engine.close()


async def test_logits_that_are_not_finite_fail_their_call_and_poison_no_later_one() -> None:
    live = tiny_model(seed=1)
    engine = tiny_engine(live)
    try:
        expected = await greedy(engine, PROMPT)
        layer = live.model.layers[0]
        hook = layer.register_forward_hook(lambda _m, _a, out: out * torch.nan)
        with pytest.raises(TandemError, match="not finite"):
            await engine.generate([7, 7, 7, 7, 7, 7, 7, 7, 7], 4, GREEDY)
        hook.remove()
        assert await greedy(engine, PROMPT) == expected
    finally:
        await engine.close()


async def test_the_thread_sleeps_when_idle() -> None:
    engine = tiny_engine()
    try:
        await engine.generate(PROMPT, 1, GREEDY)
        await eventually(lambda: engine._thread._wake._waiters)
        [asleep] = engine._thread._wake._waiters
        before = engine.statistics()
        await asyncio.sleep(0.05)
        assert list(engine._thread._wake._waiters) == [asleep]
        assert engine.statistics() == before
        assert before.running_sequences == 0
    finally:
        await engine.close()
    assert not any(thread.name == "rollout-decode" and thread.is_alive() for thread in threading.enumerate())


async def test_a_prompt_that_could_never_fit_the_models_positions_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="positions"):
        tiny_engine(model={"max_length": 512})


def test_a_model_that_the_cache_would_break_is_refused_by_name() -> None:
    live = tiny_model(seed=1)
    # Reads the whole sequence at once: right without a cache, wrong with one.
    live.model.layers[1].register_forward_hook(lambda _m, _a, out: out + out.cumsum(1))
    with pytest.raises(ConfigError, match="llama"):
        tiny_engine(live)
