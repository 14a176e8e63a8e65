import pytest

from common.errors import ConfigError
from explorer_service.tasksets import TaskOrder


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("length", [5, 7, 20, 64])
@pytest.mark.parametrize("shuffle", [True, False])
def test_over_an_epoch_all_shards_together_do_each_task_once(shards: int, length: int, shuffle: bool) -> None:
    order = TaskOrder(length, shuffle, epochs=3, seed=9)
    parts = [order.shard(index, shards) for index in range(shards)]
    assert sum(part.total for part in parts) == 3 * length
    for epoch in range(3):
        done = [
            part.position(n)
            for part in parts
            for n in range(epoch * part.epoch_length, (epoch + 1) * part.epoch_length)
        ]
        assert sorted(done) == list(range(length))


def test_without_shuffling_tasks_come_in_their_order() -> None:
    order = TaskOrder(3, shuffle=False, epochs=2, seed=0)
    assert [order.position(n) for n in range(order.total)] == [0, 1, 2, 0, 1, 2]
    second = TaskOrder(5, shuffle=False, epochs=None, seed=0).shard(1, 2)
    assert [second.position(n) for n in range(5)] == [1, 3, 1, 3, 1]


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


def test_orders_that_could_never_yield_a_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        TaskOrder(0, shuffle=True, epochs=1, seed=0)
    with pytest.raises(ConfigError, match="shard 2 has no task"):
        TaskOrder(2, shuffle=True, epochs=1, seed=0).shard(2, 3)
    with pytest.raises(ConfigError, match="does not exist"):
        TaskOrder(9, shuffle=True, epochs=1, seed=0).shard(3, 3)
    with pytest.raises(ConfigError, match="at least once"):
        TaskOrder(9, shuffle=True, epochs=0, seed=0)
