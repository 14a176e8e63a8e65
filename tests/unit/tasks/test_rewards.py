import asyncio
import threading
from typing import Any, Never

import numpy as np
import pytest

from common.errors import WorkflowFailed
from explorer_service.rewards import REWARDS, Scorer, inline
from explorer_service.rewards.threads import CallThreads
from explorer_service.tasksets import Task


def task_of(answer: str | None = None) -> Task:
    return Task("t", "p", answer)


@pytest.mark.parametrize(
    ("name", "answer", "response", "options", "reward"),
    [
        ("exact_match", "1258", " 1258\n", {}, 1.0),
        ("exact_match", "1258", "12 58", {}, 0.0),
        ("exact_match", "Yes", "yes", {}, 0.0),
        ("contains", "Paris", "It is Paris.", {}, 1.0),
        ("contains", "Paris", "It is paris.", {}, 0.0),
        ("contains", "Paris", "It is PARIS.", {"ignore_case": True}, 1.0),
        ("numeric", "#### 1,234", "3 steps, so 1234.0 it is", {}, 1.0),
        ("numeric", "0.5", "-0.5", {}, 0.0),
        ("numeric", "100", "99.5", {"tolerance": 0.01}, 1.0),
        ("numeric", "100", "99.5", {}, 0.0),
        ("numeric", "1", "one", {}, 0.0),
        ("numeric", "1", "9" * 400, {}, 0.0),
        # max(0, 1 - |words - target| / target)
        ("length_words", None, "one two three", {"target": 4}, 0.75),
        ("length_words", "2", "one two", {}, 1.0),
        ("length_words", "2", "a b c d e f", {}, 0.0),
        ("length_words", "2", "", {}, 0.0),
    ],
)
async def test_built_in_rewards(
    name: str, answer: str | None, response: str, options: dict[str, Any], reward: float
) -> None:
    score = await Scorer(REWARDS.get(name), options)(task_of(answer), response)
    assert score.reward == reward


async def test_a_comparison_without_an_answer_fails_instead_of_scoring_zero() -> None:
    for name in ("exact_match", "contains", "numeric", "length_words"):
        with pytest.raises(WorkflowFailed, match="answer"):
            await Scorer(REWARDS.get(name), {})(task_of(), "x")
    with pytest.raises(WorkflowFailed, match="has no number"):
        await Scorer(REWARDS.get("numeric"), {})(task_of("none"), "1")


@pytest.mark.parametrize(
    ("value", "reward", "metrics"),
    [
        (1, 1.0, {}),
        (True, 1.0, {}),
        (np.float32(0.25), 0.25, {}),
        ({"reward": 2, "words": 3}, 2.0, {"words": 3.0}),
    ],
)
async def test_numbers_of_any_kind_are_taken(value: Any, reward: float, metrics: dict[str, float]) -> None:
    score = await Scorer(lambda task, response: value, {})(task_of(), "x")
    assert (score.reward, score.metrics) == (reward, metrics)
    assert type(score.reward) is float


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        1e39,
        10**400,
        "1",
        None,
        [1],
        {},
        {"score": 1},
        {"reward": None},
        {"reward": 1, "x": float("nan")},
        {"reward": 1, 2: 3},
        {"reward": 1, **{str(i): i for i in range(100)}},
    ],
)
async def test_garbage_from_a_reward_is_an_error_that_names_the_task(value: Any) -> None:
    with pytest.raises(WorkflowFailed, match="reward of task 't' failed"):
        await Scorer(lambda task, response: value, {})(task_of(), "x")


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(3), KeyboardInterrupt()])
async def test_whatever_a_reward_raises_is_an_error_with_its_cause(error: BaseException) -> None:
    def reward(task: Task, response: str) -> Never:
        raise error

    with pytest.raises(WorkflowFailed, match=f"'t' failed: {type(error).__name__}") as caught:
        await Scorer(reward, {})(task_of(), "x")
    assert caught.value.__cause__.__cause__ is error


async def test_async_rewards_and_objects_are_awaited() -> None:
    class Judge:
        async def __call__(self, task: Task, response: str) -> float:
            await asyncio.sleep(0)
            return len(response)

    assert (await Scorer(Judge(), {})(task_of(), "four")).reward == 4
    # A plain function that returns a coroutine cannot be told from its signature.
    assert (await Scorer(lambda task, response: Judge()(task, response.strip()), {})(task_of(), "four ")).reward == 4


async def test_a_plain_reward_runs_in_a_thread_and_an_inline_one_on_the_loop() -> None:
    def reward(task: Task, response: str) -> float:
        return float(threading.current_thread() is threading.main_thread())

    assert (await Scorer(reward, {})(task_of(), "x")).reward == 0
    assert (await Scorer(inline(reward), {})(task_of(), "x")).reward == 1


async def test_a_hung_reward_leaves_the_loop_and_the_other_places_free() -> None:
    release = threading.Event()
    threads = CallThreads(2)
    hung = asyncio.create_task(threads.call(release.wait))
    assert [await threads.call(lambda: 5) for _ in range(3)] == [5, 5, 5]
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    release.set()


async def test_hung_calls_never_take_more_than_their_places() -> None:
    release = threading.Event()
    threads = CallThreads(2)
    calls = [asyncio.create_task(threads.call(release.wait)) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert sum(thread.name == "reward" for thread in threading.enumerate()) == 2
    for call in calls[:2]:
        call.cancel()
    release.set()
    assert await asyncio.gather(*calls[2:]) == [True, True, True]
