"""The queue of groups: oldest first, never too stale, never of lost weights."""

import pytest

from common.errors import ProtocolViolation
from common.sync.lineage import Lineage
from tests.support.received_groups import received_batch
from trainer_service.buffer.queue import LOST_LINEAGE, TOO_STALE, GroupQueue


def queue(max_staleness: int | None = None, lineage: Lineage | None = None) -> GroupQueue:
    return GroupQueue(max_staleness, lineage or Lineage(1))


def test_groups_come_out_oldest_version_first_then_in_order() -> None:
    taken = queue()
    taken.take_in(received_batch(1, [0, 1], oldest=4))
    taken.take_in(received_batch(1, [0], explorer="f", oldest=3))
    taken.take_in(received_batch(2, [2], oldest=3))
    assert [(group.explorer_id, group.ordinal) for group in taken.take(3)] == [("f", 0), ("e", 2), ("e", 0)]
    assert len(taken) == 1


def test_intake_counts_a_batch_once_and_what_was_trained_before_a_restart() -> None:
    before = queue()
    before.take_in(received_batch(1, [0, 1]))
    (first, _) = before.take(2)
    before.trained([first], 1, applied=True)
    after = queue(lineage=Lineage(2, ((1, 5),)))
    after.restore(before.state())
    intake = after.take_in(received_batch(1, [0, 1]))
    assert (intake.groups, intake.already_gone) == (2, 1)
    again = after.take_in(received_batch(1, [0, 1]))
    assert (again.groups, again.already_gone) == (0, 0)
    assert [group.ordinal for group in after.take(9)] == [1]


def test_staleness_is_judged_when_the_turn_comes() -> None:
    bounded = queue(max_staleness=2)
    bounded.take_in(received_batch(1, [0], oldest=3))
    # Step 6 follows 5 steps: 5 - 3 = 2 is allowed, step 7 makes it 3.
    assert bounded.drop_unusable(6) == []
    ((group, reason),) = bounded.drop_unusable(7)
    assert (group.ordinal, reason) == (0, TOO_STALE)
    assert bounded.dropped == {TOO_STALE: 1}
    assert bounded.account("e").frontier == 1  # dropped is accounted for, and never comes again


def test_a_group_with_a_token_of_lost_weights_is_dropped() -> None:
    # Epoch 1 came to step 7 or beyond, and epoch 2 went on from step 5.
    resumed = queue(lineage=Lineage(2, ((1, 5),)))
    resumed.take_in(received_batch(1, [0], oldest=4, newest=6, run_epoch=1))
    resumed.take_in(received_batch(2, [1], oldest=4, newest=5, run_epoch=1))
    resumed.take_in(received_batch(3, [2], oldest=6, newest=6, run_epoch=2))
    assert [(group.ordinal, reason) for group, reason in resumed.drop_unusable(6)] == [(0, LOST_LINEAGE)]
    assert len(resumed) == 2


def test_what_was_taken_and_not_trained_can_be_put_back() -> None:
    taken = queue()
    taken.take_in(received_batch(1, [0, 1]))
    groups = taken.take(2)
    assert len(taken) == 0
    taken.put_back(groups)
    assert [group.ordinal for group in taken.take(2)] == [0, 1]
    assert taken.account("e").frontier == 0


def test_a_gap_reaches_the_caller() -> None:
    with pytest.raises(ProtocolViolation):
        queue().take_in(received_batch(2, [0]))
