"""Which weights the present state descends from."""

import pytest

from common.sync.lineage import Lineage, restore


@pytest.mark.parametrize(
    ("epoch", "step", "held"),
    [(3, 0, True), (3, 999, True), (2, 4, True), (2, 5, False), (1, 4, True), (1, 5, False), (4, 0, False)],
)
def test_a_later_resume_from_an_earlier_step_cuts_all_epochs_before_it(epoch: int, step: int, held: bool) -> None:
    # Epoch 2 went on from step 9 of epoch 1, epoch 3 from step 4 of epoch 2.
    assert Lineage(3, ((1, 9), (2, 4))).holds(epoch, step) is held


def test_of_an_epoch_that_left_no_checkpoint_only_what_it_began_with_is_held() -> None:
    # Epoch 2 crashed before its first checkpoint, and epoch 3 went on from epoch 1's step 6, as epoch 2 had.
    lineage = Lineage(1).next(3, 6).knowing({1: (0, 0), 2: (1, 6)})
    assert lineage.holds(1, 6)
    assert not lineage.holds(1, 7)
    assert lineage.holds(2, 6)
    assert not lineage.holds(2, 7)


def test_an_epoch_that_started_afresh_and_died_shares_the_initial_weights_and_no_others() -> None:
    # Epoch 2 ran with `resume: false` and left no checkpoint; its steps 1 to 10 are not those of epoch 1.
    lineage = Lineage(1).next(3, 10).knowing({1: (0, 0), 2: (0, 0)})
    assert lineage.holds(1, 10)
    assert lineage.holds(2, 0)
    assert not any(lineage.holds(2, step) for step in range(1, 12))


def test_a_dead_epoch_that_began_with_a_dead_one_is_followed_back() -> None:
    # Epoch 2 went on from epoch 1's step 6 and saved it again, which epoch 3 went on from; epoch 4 from epoch 1's step 4.
    begun = {1: (0, 0), 2: (1, 6), 3: (2, 8)}
    assert not Lineage(1).next(4, 4).knowing(begun).holds(3, 8)
    assert Lineage(2, ((1, 6),)).next(4, 8).knowing(begun).holds(3, 8)


def test_of_an_epoch_of_which_nothing_is_known_nothing_is_held() -> None:
    assert not Lineage(1).next(3, 6).holds(2, 6)
    assert not Lineage(2).holds(1, 0)


def test_it_survives_a_checkpoint() -> None:
    lineage = Lineage(4, ((1, 9), (3, 4)))
    assert restore(4, lineage.state()) == lineage
    assert lineage.next(5, 8).state() == [[1, 9], [3, 4], [4, 8]]
