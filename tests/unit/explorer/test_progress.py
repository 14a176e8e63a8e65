"""Where an explorer goes on after it was killed."""

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from common.errors import StorageFailed
from common.sync.explorer_machine import ExplorerSyncState, Phase
from explorer_service.progress import GroupPlan, Progress, restore


def test_a_group_whose_task_fails_is_planned_anew_with_another() -> None:
    progress = Progress()
    assert (progress.plan(0, 1, 40), progress.plan(1, 1, 7)) == (GroupPlan(0, 1, 40), GroupPlan(1, 1, 7))
    assert progress.plan(0, 1, 8) == GroupPlan(0, 1, 8)
    assert progress.in_flight == {0: GroupPlan(0, 1, 8), 1: GroupPlan(1, 1, 7)}
    progress.done(1)
    assert list(progress.in_flight) == [0]


def test_a_restart_makes_what_was_in_flight_again_with_the_same_tasks_and_waits_for_credit() -> None:
    progress = Progress()
    for ordinal in range(5):
        progress.plan(ordinal, 1 + ordinal // 3, 10 * ordinal)
    progress.done(1)
    sync = ExplorerSyncState(
        phase=Phase.DRAINING,
        version=(2, 7),
        window=7,
        explore_step=2,
        unstarted=1,
        started=5,
        credit_limit=9,
        in_flight=MappingProxyType({1: 2, 2: 2}),
    )
    again, restored = restore(json.loads(json.dumps(progress.state(sync))))
    assert again.in_flight == {ordinal: GroupPlan(ordinal, 1 + ordinal // 3, 10 * ordinal) for ordinal in (0, 2, 3, 4)}
    # No weights are live and no credit holds; everything else is as it was.
    assert restored == replace(sync, version=(0, 0), credit_limit=5)


def test_an_empty_state_is_the_start() -> None:
    progress, sync = restore({})
    assert (progress.in_flight, sync) == ({}, ExplorerSyncState())


@pytest.mark.parametrize("changes", [{"started": None}, {"in_flight": [[1]]}, {"phase": "dancing"}])
def test_a_malformed_state_is_a_failure_of_the_storage(changes: dict[str, object]) -> None:
    state = Progress().state(ExplorerSyncState()) | changes
    with pytest.raises(StorageFailed, match="malformed"):
        restore(state)
