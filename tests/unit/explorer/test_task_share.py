"""The tasks that an explorer was given."""

import pytest

from common.errors import LimitExceeded, ProtocolViolation
from explorer_service.task_share import MAX_GIVEN, TaskShare


async def test_tasks_are_taken_in_the_order_in_which_they_were_given() -> None:
    share = TaskShare()
    share.give([5, 3])
    share.give([9])
    assert share.take() == 5
    assert share.give_back(1) == [3]
    share.revoke()
    share.give([1])
    assert share.take() == 1


async def test_what_is_no_task_and_a_flood_of_tasks_are_refused() -> None:
    share = TaskShare(total=3)
    share.give([2])
    with pytest.raises(ProtocolViolation, match="task 3 of 3"):
        share.give([3])
    endless = TaskShare()
    endless.give(range(MAX_GIVEN))
    with pytest.raises(LimitExceeded, match="unused"):
        endless.give([1])


async def test_a_failed_task_is_asked_for_until_it_is_answered() -> None:
    share = TaskShare()
    answer = share.ask_replacement(4)
    assert share.ask_replacement(4) is answer
    last = share.ask_replacement(2)
    assert share.failed == (4, 2)
    share.replace(4, 11)
    share.replace(2, None)
    assert (await answer, await last, share.failed) == (11, None, ())
    with pytest.raises(ProtocolViolation, match="has not failed"):
        share.replace(4, 12)
