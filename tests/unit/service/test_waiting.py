"""Waits that have a name and a deadline, wake without polling, and fail with the error itself."""

import asyncio
import time

import pytest

from common.changes import Changes
from common.errors import MalformedData, WaitTimedOut
from common.status import StatusBoard
from common.tasks import task_scope


async def test_a_wait_is_shown_with_its_deadline_for_as_long_as_it_lasts() -> None:
    board: StatusBoard[int] = StatusBoard(1)
    before = time.time()
    async with board.waiting("the other side", 30), board.waiting("the run's end", None):
        first, second = board.waits
        assert (first.waiting_for, second.waiting_for, second.deadline) == ("the other side", "the run's end", None)
        assert before <= first.since <= time.time()
        assert first.deadline == first.since + 30
    assert board.waits == ()


async def test_a_wait_that_reaches_its_deadline_says_for_what() -> None:
    board: StatusBoard[int] = StatusBoard(1)
    with pytest.raises(WaitTimedOut, match=r"waited 0\.01 seconds for an answer"):
        async with board.waiting("an answer", 0.01):
            await asyncio.Event().wait()
    assert board.waits == ()


async def test_a_timeout_of_another_kind_passes_as_it_is() -> None:
    board: StatusBoard[int] = StatusBoard(1)
    with pytest.raises(TimeoutError, match="another"):
        async with board.waiting("an answer", 30):
            raise TimeoutError("another")
    with pytest.raises(MalformedData):
        async with board.waiting("an answer", None):
            raise MalformedData("no answer at all")
    assert board.waits == ()


async def test_the_time_of_a_state_is_that_of_entering_it_whatever_the_reason_since() -> None:
    board: StatusBoard[int] = StatusBoard(1)
    entered = board.state_since
    board.enter(1, "a reason")
    assert (board.state, board.reason, board.state_since) == (1, "a reason", entered)
    board.state_since = 0.0
    board.enter(2)
    assert (board.state, board.reason) == (2, "")
    assert board.state_since > 0


async def test_every_waiter_looks_again_at_each_change() -> None:
    changes = Changes()
    seen: list[str] = []
    value = 0

    async def wait_for(at_least: int) -> None:
        await changes.until(lambda: value >= at_least)
        seen.append(f"{at_least} at {value}")

    async with asyncio.TaskGroup() as tasks:
        for at_least in (0, 1, 2):
            tasks.create_task(wait_for(at_least))
        for value in (0, 1, 2):  # noqa: B007 - the closure above reads it
            await asyncio.sleep(0)
            changes.notify()
            await asyncio.sleep(0)
    assert seen == ["0 at 0", "1 at 1", "2 at 2"]


async def test_a_predicate_that_raises_ends_the_wait_with_its_error() -> None:
    changes = Changes()

    def gone() -> bool:
        raise MalformedData("gone")

    with pytest.raises(MalformedData, match="gone"):
        await changes.until(gone)


async def test_a_group_of_tasks_fails_with_the_first_error_and_keeps_the_others_beside_it() -> None:
    async def fail(error: Exception, *, on_cancel: bool) -> None:
        try:
            await asyncio.sleep(30 if on_cancel else 0)
        finally:
            raise error

    async def both() -> None:
        async with task_scope() as tasks:
            tasks.create_task(fail(MalformedData("first"), on_cancel=False))
            tasks.create_task(fail(ValueError("second"), on_cancel=True))

    with pytest.raises(MalformedData, match="first") as caught:
        await both()
    assert caught.value.__notes__ == ["at the same time: ValueError: second"]


async def test_errors_of_nested_groups_come_out_flat() -> None:
    async def fail() -> None:
        raise MalformedData("inner")

    async def nested() -> None:
        async with task_scope() as outer:
            outer.create_task(asyncio.sleep(30))
            async with task_scope() as inner:
                inner.create_task(fail())

    with pytest.raises(MalformedData, match="inner"):
        await nested()


async def test_cancelling_from_outside_is_no_error_of_the_group() -> None:
    started = asyncio.Event()

    async def body() -> None:
        async with task_scope() as tasks:
            tasks.create_task(asyncio.sleep(30))
            started.set()
            await asyncio.sleep(30)

    task = asyncio.create_task(body())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
