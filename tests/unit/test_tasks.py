"""Groups of tasks: a cancellation always comes out, and what is none never looks like one."""

import asyncio

import pytest

from common.tasks import task_scope


async def fails(error: Exception) -> None:
    raise error


async def fails_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise OSError("the connection broke") from None


async def test_a_task_that_fails_as_it_is_cancelled_does_not_keep_its_owner_alive() -> None:
    begun = asyncio.Event()

    async def tries_again_after_errors() -> None:
        while True:
            try:
                async with task_scope() as tasks:
                    tasks.create_task(fails_when_cancelled())
                    begun.set()
                    await asyncio.Event().wait()
            except OSError:
                await asyncio.sleep(0)

    owner = asyncio.create_task(tries_again_after_errors())
    await begun.wait()
    await asyncio.sleep(0)
    owner.cancel()
    await asyncio.wait([owner], timeout=5)
    assert owner.cancelled()


async def test_an_error_within_a_task_that_was_cancelled_earlier_and_went_on_still_comes_out() -> None:
    async def survives_a_cancellation() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            async with task_scope() as tasks:
                tasks.create_task(fails(ValueError("while cleaning up")))

    owner = asyncio.create_task(survives_a_cancellation())
    await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(ValueError, match="while cleaning up"):
        await owner


@pytest.mark.parametrize("body_waits", [False, True])
async def test_an_error_of_the_group_leaves_no_cancellation_behind(body_waits: bool) -> None:
    async def owner() -> int:
        try:
            async with task_scope() as tasks:
                tasks.create_task(fails(ValueError("in the group")))
                if body_waits:
                    await asyncio.Event().wait()
        except ValueError:
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()
        return -1

    assert await asyncio.create_task(owner()) == 0
