"""The four styles by hand: rollouts of 2 s, steps of 1 s, a push of 1/2 s, one group a step on either side.

The times are worked out from DESIGN section 5, on paper.
"""

from __future__ import annotations

from common.sync.policy import Style, SyncPolicy
from common.sync.simulate import Durations, Lane, Outage, SimulationResult, find_deadlock, simulate

DURATIONS = Durations(rollout=2.0, train=1.0, push=0.5)


def steps_of(result: SimulationResult, lane: Lane) -> list[tuple[int, int, float, float]]:
    return [(bar.step, bar.version, bar.start, bar.end) for bar in result.spans if bar.lane is lane]


def test_on_policy_takes_turns() -> None:
    result = simulate(SyncPolicy(Style.FIXED), durations=DURATIONS, total_steps=2)
    assert steps_of(result, Lane.EXPLORER)[:2] == [(1, 0, 0.5, 2.5), (2, 1, 4.0, 6.0)]
    assert steps_of(result, Lane.TRAINER) == [(1, 0, 2.5, 3.5), (2, 1, 6.0, 7.0)]
    assert dict(result.staleness) == {0: 2}
    assert result.seconds == 7.0
    assert (result.trainer_idle, result.explorer_idle) == (1 - 2 / 7, 1 - 4 / 7)


def test_an_offset_of_one_overlaps_both_sides_one_step_off_policy() -> None:
    result = simulate(SyncPolicy(Style.FIXED, offset=1), durations=DURATIONS, total_steps=3)
    # Steps 1 and 2 on version 0; version 1 is there at 4.0, before the boundary at 4.5.
    assert steps_of(result, Lane.EXPLORER)[:3] == [(1, 0, 0.5, 2.5), (2, 0, 2.5, 4.5), (3, 1, 4.5, 6.5)]
    assert steps_of(result, Lane.TRAINER) == [(1, 0, 2.5, 3.5), (2, 1, 4.5, 5.5), (3, 2, 6.5, 7.5)]
    assert dict(result.staleness) == {0: 1, 1: 2}


def test_trainer_driven_never_waits_at_its_boundary() -> None:
    result = simulate(SyncPolicy(Style.TRAINER_DRIVEN, trainer_interval=2), durations=DURATIONS, total_steps=3)
    # Version 1 is not published; version 2 at 5.5, live from the boundary at 6.5 on.
    assert (
        steps_of(result, Lane.EXPLORER)[:4]
        == [
            (1, 0, 0.5, 2.5),
            (2, 0, 2.5, 4.5),
            (3, 0, 4.5, 6.5),
            (4, 2, 6.5, 8.5),
        ][: len(steps_of(result, Lane.EXPLORER))]
    )
    assert [version for _, version, _, _ in steps_of(result, Lane.TRAINER)] == [0, 1, 2]
    assert dict(result.staleness) == {0: 1, 1: 1, 2: 1}


def test_explorer_driven_asks_and_is_given_what_was_trained_since() -> None:
    result = simulate(SyncPolicy(Style.EXPLORER_DRIVEN), durations=DURATIONS, total_steps=3)
    # It asks at 2.5, when version 0 is the newest: nothing newer. It asks at 4.5, when step 2 has just begun: its version
    # is published at 5.5.
    assert steps_of(result, Lane.EXPLORER)[:3] == [(1, 0, 0.5, 2.5), (2, 0, 2.5, 4.5), (3, 2, 6.0, 8.0)]
    assert steps_of(result, Lane.TRAINER) == [(1, 0, 2.5, 3.5), (2, 1, 4.5, 5.5), (3, 2, 8.0, 9.0)]
    assert dict(result.staleness) == {0: 2, 1: 1}


def test_fully_async_has_two_steps_in_flight_and_swaps_under_way() -> None:
    policy = SyncPolicy(Style.FULLY_ASYNC, max_inflight_batches=2)
    result = simulate(policy, durations=DURATIONS, total_steps=3)
    assert steps_of(result, Lane.EXPLORER)[:4] == [
        (1, 0, 0.5, 2.5),
        (2, 0, 0.5, 2.5),
        (3, 0, 2.5, 4.5),
        (4, 0, 2.5, 4.5),
    ]
    assert steps_of(result, Lane.TRAINER) == [(1, 0, 2.5, 3.5), (2, 1, 3.5, 4.5), (3, 2, 4.5, 5.5)]
    assert dict(result.staleness) == {0: 1, 1: 1, 2: 1}


def test_a_deadlock_is_found_and_both_sides_say_what_they_wait_for() -> None:
    reason = find_deadlock(SyncPolicy(Style.FIXED, groups_per_train_step=8, groups_per_explore_step=4), 1)
    assert reason == (
        "the trainer at step 0 waits for 8 groups, 4 are there; the explorer waits for a version newer than step 0 "
        "(fixed, after explore step 1)"
    )


def test_two_explorers_share_the_credit() -> None:
    policy = SyncPolicy(Style.FIXED, groups_per_train_step=2)
    result = simulate(policy, explorers=2, durations=DURATIONS, total_steps=3)
    assert result.finished
    assert [versions[:3] for versions in result.versions] == [(0, 1, 2), (0, 1, 2)]


def test_a_cut_stream_delays_and_loses_nothing() -> None:
    outage = Outage(explorer=0, at=1.0, seconds=5.0)
    result = simulate(SyncPolicy(Style.FIXED), durations=DURATIONS, total_steps=2, outages=(outage,))
    assert result.finished
    # The group is ready at 2.5 and arrives when the stream is back.
    assert steps_of(result, Lane.TRAINER)[0] == (1, 0, 6.0, 7.0)
    assert dict(result.staleness) == {0: 2}


def test_what_is_left_at_the_end_of_the_tasks_is_trained() -> None:
    policy = SyncPolicy(Style.FIXED, groups_per_train_step=2, groups_per_explore_step=2)
    result = simulate(policy, durations=DURATIONS, tasks=5)
    assert result.finished
    assert (result.steps, sum(result.staleness.values())) == (3, 5)
