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
    lineage = Lineage(1).next(3, 6)
    assert lineage.holds(1, 6)
    assert not lineage.holds(1, 7)
    assert lineage.holds(2, 6)
    assert not lineage.holds(2, 7)


def test_a_fresh_start_holds_nothing_of_earlier_epochs_but_the_initial_weights() -> None:
    assert Lineage(2).holds(1, 0)
    assert not Lineage(2).holds(1, 1)


def test_it_survives_a_checkpoint() -> None:
    lineage = Lineage(4, ((1, 9), (3, 4)))
    assert restore(4, lineage.state()) == lineage
    assert lineage.next(5, 8).state() == [[1, 9], [3, 4], [4, 8]]
