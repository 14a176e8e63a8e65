import pytest

from common.errors import ConfigError
from explorer_service.tasksets import TaskOrder


def test_without_shuffling_tasks_come_in_their_order() -> None:
    order = TaskOrder(3, shuffle=False, epochs=2, seed=0)
    assert [order.position(n) for n in range(order.total)] == [0, 1, 2, 0, 1, 2]


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    order = TaskOrder(50, shuffle=True, epochs=2, seed=1)
    first, second = ([order.position(n) for n in range(start, start + 50)] for start in (0, 50))
    other = TaskOrder(50, shuffle=True, epochs=2, seed=2)
    assert len({tuple(first), tuple(second), tuple(other.position(n) for n in range(50))}) == 3


def test_a_position_gives_the_same_task_whatever_was_asked_before() -> None:
    order = TaskOrder(30, shuffle=True, epochs=None, seed=4)
    forward = [order.position(n) for n in range(90)]
    again = TaskOrder(30, shuffle=True, epochs=None, seed=4)
    assert [again.position(n) for n in reversed(range(90))] == forward[::-1]


def test_an_order_ends_exactly_after_its_epochs() -> None:
    order = TaskOrder(4, shuffle=True, epochs=2, seed=0)
    assert order.total == 8
    order.position(7)
    with pytest.raises(IndexError):
        order.position(8)
    with pytest.raises(IndexError):
        order.position(-1)
    assert TaskOrder(4, shuffle=True, epochs=None, seed=0).total is None


def test_orders_are_told_apart_by_all_that_changes_them() -> None:
    fingerprints = {
        TaskOrder(length, shuffle, epochs, seed).fingerprint
        for length in (5, 6)
        for shuffle in (True, False)
        for epochs in (1, 2, None)
        for seed in (0, 1)
    }
    # Without shuffling the seed changes nothing: 2 lengths x 3 epochs x (2 seeds + 1).
    assert len(fingerprints) == 18


def test_orders_that_could_never_yield_a_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        TaskOrder(0, shuffle=True, epochs=1, seed=0)
    with pytest.raises(ConfigError, match="at least once"):
        TaskOrder(9, shuffle=True, epochs=0, seed=0)
