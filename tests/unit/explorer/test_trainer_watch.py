"""A trainer that is connected and does not answer is found out; one that is slow, or out of reach, is not taken for it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from common.changes import Changes
from common.errors import PeerUnavailable, WaitTimedOut
from explorer_service.trainer_watch import TrainerWatch

TIMEOUT = 0.05


async def watched(ask: Callable[[], Awaitable[None]], waiting_for: str, *, reached: bool = True) -> None:
    """For ten times the timeout."""
    watch = TrainerWatch(ask, lambda: reached, Changes(), lambda: waiting_for, TIMEOUT, ask_every=0.005)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.run(), 10 * TIMEOUT)


async def test_a_trainer_that_answered_and_then_hangs_ends_the_wait_with_the_cause() -> None:
    answers = 3

    async def ask() -> None:
        nonlocal answers
        answers -= 1
        if answers < 0:
            raise WaitTimedOut("no answer")

    watch = TrainerWatch(ask, lambda: True, Changes(), lambda: "credit to start group 4", TIMEOUT, ask_every=0.005)
    with pytest.raises(PeerUnavailable, match=r"has not answered for .* waits for credit to start group 4"):
        await asyncio.wait_for(watch.run(), 100 * TIMEOUT)


async def test_a_trainer_that_answers_may_take_as_long_as_it_likes() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1

    await watched(ask, "a newer version")
    assert asked > 1


async def test_a_trainer_that_is_out_of_reach_for_calls_is_no_hung_one() -> None:
    async def never() -> None:
        raise WaitTimedOut("no answer")

    async def refused() -> None:
        raise PeerUnavailable("cannot connect")

    await watched(never, "a newer version", reached=False)
    await watched(refused, "a newer version")


async def test_nobody_is_asked_while_the_explorer_is_busy() -> None:
    async def ask() -> None:
        raise AssertionError("asked")

    await watched(ask, "")
