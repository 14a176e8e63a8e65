"""The account of one explorer: exactly once, across restarts of either side."""

import json

import pytest

from common.errors import CheckpointInvalid, ProtocolViolation
from tests.support.received_groups import received_batch
from trainer_service.buffer.account import ExplorerAccount


def fed(*batches: tuple[int, list[int]]) -> ExplorerAccount:
    account = ExplorerAccount("e")
    for sequence, ordinals in batches:
        account.take_in(received_batch(sequence, ordinals))
    return account


def let_go(account: ExplorerAccount, sequence: int, *ordinals: int) -> None:
    for group in received_batch(sequence, ordinals).groups:
        account.let_go(group)


def restarted(account: ExplorerAccount) -> ExplorerAccount:
    return ExplorerAccount.restore("e", json.loads(json.dumps(account.state())))


def test_a_repeated_batch_gives_nothing() -> None:
    account = fed((1, [0, 1]))
    assert account.take_in(received_batch(1, [0, 1])) == ()
    assert (account.received_through, account.received_groups) == (1, 2)


def test_a_gap_in_the_sequence_is_refused() -> None:
    account = fed((1, [0]))
    with pytest.raises(ProtocolViolation, match="batch 3 came after 1"):
        account.take_in(received_batch(3, [2]))
    assert account.received_through == 1


def test_the_frontier_stands_before_the_first_batch_of_which_a_group_is_still_here() -> None:
    account = fed((1, [0, 1]), (2, [2]), (3, [3, 4]))
    let_go(account, 1, 0)
    let_go(account, 2, 2)
    assert account.frontier == 0  # group 1 of batch 1 is still here
    let_go(account, 1, 1)
    assert account.frontier == 2
    assert account.gone_groups == 3
    let_go(account, 3, 4)
    let_go(account, 3, 3)
    assert account.frontier == 3


def test_after_a_restart_groups_beyond_the_frontier_that_were_trained_do_not_come_again() -> None:
    account = fed((1, [0, 1]), (2, [2, 3]))
    let_go(account, 1, 0, 1)
    let_go(account, 2, 3)
    again = restarted(account)
    assert (again.frontier, again.received_through, again.durable_through) == (1, 1, 1)
    assert (again.received_groups, again.gone_groups) == (2, 2)
    assert again.take_in(received_batch(1, [0, 1])) == ()
    assert [group.ordinal for group in again.take_in(received_batch(2, [2, 3]))] == [2]
    assert (again.received_groups, again.gone_groups) == (4, 3)
    let_go(again, 2, 2)
    assert (again.frontier, again.gone_groups) == (2, 4)


def test_a_replayed_batch_of_which_everything_was_trained_moves_the_frontier_at_once() -> None:
    account = fed((1, [0]), (2, [1, 2]))
    let_go(account, 2, 1, 2)
    again = restarted(account)
    again.take_in(received_batch(1, [0]))
    again.take_in(received_batch(2, [1, 2]))
    let_go(again, 1, 0)
    assert again.frontier == 2


def test_a_group_leaves_once() -> None:
    account = fed((1, [0, 1]))
    let_go(account, 1, 0)
    with pytest.raises(KeyError):
        let_go(account, 1, 0)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"frontier": "x", "groups_below_frontier": 0, "gone_beyond": {}},
        {"frontier": 0, "groups_below_frontier": 0, "gone_beyond": [1]},
        {"frontier": 0, "groups_below_frontier": 0, "gone_beyond": {"2": None}},
    ],
)
def test_a_malformed_account_is_an_invalid_checkpoint(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointInvalid, match="account of e"):
        ExplorerAccount.restore("e", state)


def test_a_fresh_account_skips_what_the_explorer_has_forgotten() -> None:
    account = ExplorerAccount("e")
    assert account.skip_to(3, 7) == 7
    assert (account.frontier, account.received_through) == (3, 3)
    assert (account.received_groups, account.gone_groups) == (7, 7)
    assert [group.ordinal for group in account.take_in(received_batch(4, [7, 8]))] == [7, 8]
    assert account.state() == {"frontier": 3, "groups_below_frontier": 7, "gone_beyond": {}}


def test_an_older_checkpoint_loses_only_what_it_had_not_trained() -> None:
    account = fed((1, [0, 1]), (2, [2, 3]))
    let_go(account, 1, 0, 1)
    let_go(account, 2, 2)
    again = restarted(account)
    # Batches 1 to 3 were acknowledged, with 2 + 2 + 3 groups: 0, 1 and 2 were trained, four others are lost.
    assert again.skip_to(3, 7) == 4
    assert (again.received_groups, again.gone_groups) == (7, 7)
    assert again.state()["gone_beyond"] == {}


def test_what_was_trained_beyond_the_acknowledged_batches_is_still_known() -> None:
    account = fed((1, [0]), (2, [1]), (3, [2, 3]))
    let_go(account, 3, 2)
    again = restarted(account)
    assert again.skip_to(1, 1) == 1
    again.take_in(received_batch(2, [1]))
    assert [group.ordinal for group in again.take_in(received_batch(3, [2, 3]))] == [3]


def test_acknowledgements_of_our_own_skip_nothing() -> None:
    account = fed((1, [0, 1]), (2, [2]))
    let_go(account, 1, 0, 1)
    assert account.skip_to(1, 2) == 0
    assert (account.frontier, account.received_through) == (1, 2)


def test_acknowledgements_that_nobody_can_have_given_are_refused() -> None:
    account = fed((1, [0]), (2, [1]))
    with pytest.raises(ProtocolViolation, match="through batch 2"):
        account.skip_to(2, 2)  # batch 2 is here, and not trained
    let_go(account, 1, 0)
    let_go(account, 2, 1)
    with pytest.raises(ProtocolViolation, match="1 groups are said"):
        account.skip_to(5, 1)  # fewer groups than below our frontier
