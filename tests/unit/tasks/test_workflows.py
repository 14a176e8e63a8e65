import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from common.config.explorer import SamplingConfig
from common.errors import ConfigError, WorkflowFailed
from explorer_service.engine.base import Completion
from explorer_service.rewards import REWARDS, Score, Scorer
from explorer_service.tasksets import Task
from explorer_service.workflows import Environment, MultiTurn, Policy, SingleTurn, Transcript, Turn
from explorer_service.workflows.seeds import derive_seed
from tests.support.fake_policy import END, AnsweringEngine, CharacterTokenizer

EXACT = Scorer(REWARDS.get("exact_match"), {})


def policy_of(engine: AnsweringEngine, sample: int = 0, max_length: int | None = None, **sampling: Any) -> Policy:
    return Policy(engine, CharacterTokenizer(), SamplingConfig(**sampling), (0, sample), max_length)


def deadline(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


class Guess(MultiTurn):
    """Says `no.` to wrong guesses."""

    async def environment(self, task: Task) -> Environment:
        class World:
            async def step(self, reply: str) -> Turn:
                return Turn() if reply == task.answer else Turn("no.", metrics={"wrong": 1.0})

        return World()


async def test_single_turn_samples_all_responses_in_one_call() -> None:
    engine = AnsweringEngine(lambda text, call, sample: ["42", "7"][sample])
    right, wrong = await SingleTurn(EXACT).run(Task("t", "6*7=", "42"), [policy_of(engine)] * 2, deadline())
    assert [(text, n) for text, n, _, _ in engine.calls] == [("6*7=", 2)]
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    (experience,) = right.experiences
    assert experience.tokens.tolist() == [*map(ord, "6*7=42"), END]
    assert experience.prompt_length == 4
    assert experience.action_mask.tolist() == [1, 1, 1]
    assert experience.logprobs.tolist() == [-0.125, -0.25, -0.375]
    assert (experience.prompt_text, experience.response_text) == ("6*7=", "42")
    assert (experience.oldest_version, experience.newest_version, right.run_epoch) == (7, 7, 2)
    assert not experience.truncated


async def test_a_cut_off_response_is_marked_truncated() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "long answer")
    (rollout,) = await SingleTurn(EXACT).run(Task("t", "p", "x"), [policy_of(engine, max_tokens=4)], deadline())
    assert rollout.experiences[0].truncated
    assert rollout.experiences[0].tokens.tolist() == [*map(ord, "plong")]


async def test_multi_turn_trains_only_what_the_policy_wrote() -> None:
    engine = AnsweringEngine(lambda text, call, sample: ["3", "42"][call])
    (rollout,) = await Guess(EXACT).run(Task("t", "?", "42"), [policy_of(engine)], deadline())
    (experience,) = rollout.experiences
    # prompt `?`, reply `3` and its end token, observation `no.`, reply `42` and its end token
    assert experience.tokens.tolist() == [ord("?"), ord("3"), END, *map(ord, "no."), ord("4"), ord("2"), END]
    assert experience.prompt_length == 1
    assert experience.action_mask.tolist() == [1, 1, 0, 0, 0, 1, 1, 1]
    assert experience.logprobs.tolist() == [-0.125, -0.25, 0, 0, 0, -0.125, -0.25, -0.375]
    assert experience.logprobs.dtype == np.float32
    assert experience.action_mask.dtype == np.uint8
    assert experience.tokens.dtype == np.int32
    assert experience.response_text == "3no.42"
    assert rollout.reward == 1.0
    assert rollout.metrics == {"wrong": 1.0, "turns": 2.0}


async def test_the_next_turn_starts_from_the_very_tokens_that_were_sampled() -> None:
    seen = []

    class Recording(AnsweringEngine):
        async def generate(
            self, prompt: Sequence[int], n: int, sampling: SamplingConfig, seed: int | None = None
        ) -> list[Completion]:
            seen.append(list(prompt))
            return await super().generate(prompt, n, sampling, seed)

    engine = Recording(lambda text, call, sample: ["3", "42"][call])
    await Guess(EXACT).run(Task("t", "?", "42"), [policy_of(engine)], deadline())
    assert seen == [[ord("?")], [ord("?"), ord("3"), END, *map(ord, "no.")]]


async def test_a_sequence_that_spans_updates_has_the_versions_of_its_ends() -> None:
    engine = AnsweringEngine(lambda text, call, sample: ["3", "42"][call])

    class World:
        async def step(self, reply: str) -> Turn:
            engine.version, engine.run_epoch = 9, 3
            return Turn() if reply == "42" else Turn("no.")

    class Updating(MultiTurn):
        async def environment(self, task: Task) -> Environment:
            return World()

    (rollout,) = await Updating(EXACT).run(Task("t", "?", "42"), [policy_of(engine)], deadline())
    (experience,) = rollout.experiences
    assert (experience.oldest_version, experience.newest_version, rollout.run_epoch) == (7, 9, 2)


async def test_an_episode_ends_after_max_turns() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "3")
    (rollout,) = await Guess(EXACT, max_turns=3).run(Task("t", "?", "42"), [policy_of(engine)], deadline())
    assert rollout.metrics["turns"] == 3
    assert rollout.experiences[0].response_text == "3no.3no.3"
    with pytest.raises(ConfigError, match="max_turns"):
        Guess(EXACT, max_turns=0)


async def test_an_episode_ends_as_truncated_when_the_context_is_full() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "3")
    # `?`, `3`, end: 3 tokens; with `no.` 6: no seventh would fit.
    (rollout,) = await Guess(EXACT).run(Task("t", "?", "42"), [policy_of(engine, max_length=6)], deadline())
    assert rollout.experiences[0].tokens.tolist() == [ord("?"), ord("3"), END]
    assert rollout.experiences[0].truncated


async def test_an_episode_ends_with_a_reply_that_is_cut_off() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "345")
    (rollout,) = await Guess(EXACT).run(Task("t", "?", "42"), [policy_of(engine, max_tokens=2)], deadline())
    assert len(engine.calls) == 1
    assert rollout.experiences[0].truncated


async def test_the_rewards_of_an_environment_are_added_up_in_place_of_the_tasksets() -> None:
    class World:
        async def step(self, reply: str) -> Turn:
            return Turn("more" if reply == "a" else None, reward=0.5)

    class Paying(MultiTurn):
        async def environment(self, task: Task) -> Environment:
            return World()

    engine = AnsweringEngine(lambda text, call, sample: "ab"[call])
    (rollout,) = await Paying(EXACT).run(Task("t", "?", None), [policy_of(engine)], deadline())
    assert rollout.reward == 1.0


async def test_a_rollout_that_raises_or_hangs_fails_alone() -> None:
    def answer(text: str, call: int, sample: int) -> str:
        if call == 0:
            raise ZeroDivisionError("in the first")
        return ... if call == 1 else "42"

    engine = AnsweringEngine(answer)
    policies = [policy_of(engine, sample) for sample in range(3)]
    raised, hung, fine = await Guess(EXACT).run(Task("t", "?", "42"), policies, deadline(0.1))
    assert "ZeroDivisionError: in the first" in raised.message
    assert "explorer.rollout_timeout" in hung.message
    assert engine.cancelled == 1
    assert fine.reward == 1.0


async def test_a_prompt_without_room_for_a_reply_is_named() -> None:
    policy = policy_of(AnsweringEngine(lambda *_: "x"), max_length=4)
    assert len(policy.start("abc")) == 3
    with pytest.raises(WorkflowFailed, match=r"4 tokens, model\.max_length is 4"):
        policy.start("abcd")
    with pytest.raises(WorkflowFailed, match="no tokens"):
        policy.start("")


async def test_seeds_depend_on_the_key_and_the_call_alone() -> None:
    engine = AnsweringEngine(lambda text, call, sample: "x")
    for sample in (0, 0, 1):
        policy = policy_of(engine, sample)
        await policy.generate([65])
        await policy.generate([65], max_tokens=3, stop=["."])
    seeds = [seed for _, _, _, seed in engine.calls]
    assert seeds[0:2] == seeds[2:4]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (engine.calls[1][2].max_tokens, engine.calls[1][2].stop) == (3, (".",))
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(1) != derive_seed("1")


def test_a_transcript_without_a_completion_is_no_rollout() -> None:
    with pytest.raises(WorkflowFailed, match="wrote nothing"):
        Transcript([1, 2]).finish(Score(1.0))


def test_a_fork_grows_on_its_own() -> None:
    trunk = Transcript([1, 2])
    fork = trunk.fork()
    fork.add_observation([3])
    trunk.add_observation([4, 5])
    assert fork.tokens == [1, 2, 3]
    assert trunk.tokens == [1, 2, 4, 5]
