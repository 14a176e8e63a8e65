"""Who holds which task, followed by hand."""

import json

import pytest

from common.sync.task_pool import MAX_AHEAD, TaskPool


def test_tasks_are_lent_in_order_and_as_many_as_there_are() -> None:
    pool = TaskPool(5)
    assert pool.lend("a", 2) == [0, 1]
    assert pool.lend("b", 2) == [2, 3]
    assert pool.left == 1
    assert pool.lend("a", 9) == [4]
    assert (pool.left, pool.lend("b", 1)) == (0, [])
    assert not pool.is_exhausted
    for explorer, task in (("a", 0), ("a", 1), ("b", 2), ("b", 3), ("a", 4)):
        assert pool.arrive(explorer, task)
    assert pool.is_exhausted
    assert pool.done == 0
    pool.finish("b", 2)
    pool.finish("b", 2)
    assert pool.done == 1


def test_what_was_not_begun_when_a_stream_broke_is_lent_again_lowest_first() -> None:
    pool = TaskPool()
    pool.lend("a", 4)
    pool.lend("b", 1)
    pool.rejoin("a", [2])
    assert pool.lend("b", 4) == [0, 1, 3, 5]
    assert pool.holders == ("a", "b")


def test_what_is_given_back_at_a_boundary_goes_to_others() -> None:
    pool = TaskPool(3)
    pool.lend("a", 3)
    pool.take_back("a", [1, 2, 77])
    assert pool.left == 2
    assert pool.lend("b", 2) == [1, 2]


def test_a_failed_task_counts_as_done_and_its_replacement_is_the_same_when_asked_again() -> None:
    pool = TaskPool(3)
    pool.lend("a", 2)
    assert pool.replace("a", 1) == 2
    assert pool.replace("a", 1) == 2
    assert pool.done == 1
    assert pool.replace("a", 0) is None
    assert pool.left == 0


def test_an_answer_that_was_lost_with_the_explorer_is_lent_anew() -> None:
    pool = TaskPool(4)
    pool.lend("a", 1)
    assert pool.replace("a", 0) == 1
    # It was killed before it heard: it still holds the failed one, tries it again, and it fails again.
    pool.rejoin("a", [0])
    assert pool.replace("a", 0) == 1


def test_tasks_of_one_that_is_given_up_fall_to_others_and_what_it_made_of_them_is_refused() -> None:
    pool = TaskPool(2)
    pool.lend("a", 2)
    assert pool.arrive("a", 0)
    assert pool.give_up("a") == 1
    assert pool.lend("b", 2) == [1]
    pool.rejoin("a", [0, 1])
    assert not pool.arrive("a", 1)
    assert pool.arrive("b", 1)
    assert not pool.arrive("b", 1)


def test_one_that_was_given_up_and_comes_back_in_time_keeps_what_it_made() -> None:
    pool = TaskPool(3)
    pool.lend("a", 2)
    pool.give_up("a")
    pool.rejoin("a", [1])
    assert pool.lend("b", 3) == [0, 2]
    assert pool.arrive("a", 1)


def test_after_a_restart_the_word_of_who_is_there_goes_before_the_checkpoint() -> None:
    before = TaskPool(10)
    before.lend("a", 3)
    before.arrive("a", 0)
    before.finish("a", 0)
    before.lend("b", 1)
    after = TaskPool(10)
    after.restore(json.loads(json.dumps(before.state())))
    assert (after.done, set(after.holders)) == (1, {"a", "b"})
    # Since the checkpoint, a gave 2 back, b was lent it, and 5 beside.
    after.rejoin("b", [2, 3, 5])
    after.rejoin("a", [0, 1])
    assert after.lend("c", 9) == [4, 6, 7, 8, 9]
    assert not after.arrive("a", 2)
    assert after.arrive("b", 2)


def test_a_restart_lends_again_what_nobody_holds() -> None:
    before = TaskPool(4)
    before.lend("a", 3)
    before.take_back("a", [1])
    after = TaskPool(4)
    after.restore(before.state())
    assert after.lend("b", 9) == [1, 3]


@pytest.mark.parametrize(("total", "held"), [(10, 10), (None, MAX_AHEAD + 1)])
def test_tasks_that_can_never_have_been_lent_are_refused(total: int | None, held: int) -> None:
    pool = TaskPool(total)
    with pytest.raises(ValueError, match="is held"):
        pool.rejoin("a", [held])
    assert pool.lend("a", 1) == [0]


def test_a_checkpoint_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot all be in work"):
        TaskPool().restore({"next": 1 << 40, "done_below": 0, "done_beyond": [], "loans": {}})
