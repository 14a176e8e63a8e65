"""What holds of the schedule whatever happens when: orders are drawn, and so are faults, joins and settings."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.config.hangs import find_hang
from common.sync import explorer_machine, trainer_machine
from common.sync.events import (
    ExplorerLeft,
    GroupFinished,
    GroupsReceived,
    TrainStepDone,
    TrainStepStarted,
    WeightsApplied,
    WeightsDelivered,
    WeightsStaged,
)
from common.sync.policy import Style, SyncPolicy
from common.sync.simulate import find_deadlock
from common.sync.trainer_state import IllegalEvent, outstanding
from tests.support.shuffled_pair import ShuffledPair

STEPS = 10
seeds = st.integers(0, 2**32 - 1)
styles = st.sampled_from(list(Style))


@st.composite
def balanced(draw: st.DrawFn, style: Style | None = None, max_explorers: int = 4) -> tuple[SyncPolicy, int]:
    """Policies under which the explorers make between two boundaries what the trainer takes between two publications."""
    explorers = draw(st.integers(1, max_explorers))
    each = draw(st.integers(1, 3))
    interval = draw(st.integers(1, 3))
    offset = draw(st.integers(0, 3))
    batch = each * explorers
    staleness = draw(st.none() | st.integers(interval - 1, interval + 3))
    return SyncPolicy(
        style or draw(styles),
        interval,
        interval,
        offset,
        groups_per_train_step=batch,
        groups_per_explore_step=each,
        max_staleness=staleness,
        max_inflight_batches=draw(st.integers(1, 3)),
        max_queued_groups=draw(st.integers(2, 8)) * batch,
    ), explorers


@given(balanced(), seeds)
@settings(deadline=None, max_examples=40)
def test_a_run_without_faults_ends_whatever_the_order(settled: tuple[SyncPolicy, int], seed: int) -> None:
    policy, explorers = settled
    shuffled = ShuffledPair(policy, explorers, random.Random(seed), total_steps=STEPS)
    assert shuffled.run(), (find_hang(policy, explorers, STEPS), shuffled.pair.trainer)
    assert shuffled.pair.trainer.step == STEPS
    _check_the_books(shuffled)


AWAY_WHEN_THE_RUN_ENDS = SyncPolicy(
    trainer_interval=3,
    explorer_interval=3,
    offset=3,
    groups_per_train_step=4,
    max_inflight_batches=2,
    max_queued_groups=8,
)


@given(balanced(), seeds, st.integers(1, 6))
@example((AWAY_WHEN_THE_RUN_ENDS, 4), 244612, 5)
@example((SyncPolicy(offset=1, groups_per_train_step=3, max_queued_groups=6), 3), 286, 4)  # its first word is lost
@settings(deadline=None, max_examples=40)
def test_a_run_ends_whatever_fails_and_is_mended(settled: tuple[SyncPolicy, int], seed: int, faults: int) -> None:
    policy, explorers = settled
    # What an explorer that was away still needs is not known for sure; credit that it keeps must leave room for others.
    policy = replace(policy, max_queued_groups=policy.max_queued_groups + 2 * STEPS * policy.groups_per_train_step)
    shuffled = ShuffledPair(policy, explorers, random.Random(seed), total_steps=STEPS, faults=faults, late=True)
    assert shuffled.run(), (shuffled.pair.trainer, [explorer.state for explorer in shuffled.pair.explorers])
    assert shuffled.pair.trainer.step == STEPS
    _check_the_books(shuffled)


FIRST_WINDOW_OF_AN_EARLIER_EPOCH = SyncPolicy(
    offset=2, groups_per_train_step=2, max_inflight_batches=2, max_queued_groups=4
)


@given(balanced(max_explorers=4), seeds, st.integers(1, 6))
@example((FIRST_WINDOW_OF_AN_EARLIER_EPOCH, 2), 557, 3)
@settings(deadline=None, max_examples=60)
def test_those_that_are_left_go_on_when_explorers_leave_for_good(
    settled: tuple[SyncPolicy, int], seed: int, faults: int
) -> None:
    policy, explorers = settled
    policy = replace(policy, max_queued_groups=policy.max_queued_groups + 2 * STEPS * policy.groups_per_train_step)
    kinds = ("gone", "cut", "explorer", "trainer")
    shuffled = ShuffledPair(
        policy, explorers, random.Random(seed), total_steps=STEPS, faults=faults, kinds=kinds, late=True
    )
    assert shuffled.run(), (shuffled.pair.trainer, [explorer.state for explorer in shuffled.pair.explorers])
    assert shuffled.pair.trainer.step == STEPS
    _check_the_books(shuffled)


@given(seeds, st.integers(2, 4), st.integers(0, 5), st.integers(1, 30), styles)
@example(1713, 4, 4, 21, Style.FIXED)  # credit that comes late is given back while a window is repeated
@example(667, 2, 3, 4, Style.TRAINER_DRIVEN)  # one is gone, and its tasks come back when the other had finished
@settings(deadline=None, max_examples=60)
def test_every_task_is_trained_once_whoever_comes_and_goes(
    seed: int, explorers: int, faults: int, tasks: int, style: Style
) -> None:
    policy = SyncPolicy(style, groups_per_train_step=explorers, max_queued_groups=1000)
    kinds = ("gone", "cut", "explorer", "trainer")
    shuffled = ShuffledPair(policy, explorers, random.Random(seed), tasks=tasks, faults=faults, kinds=kinds, late=True)
    assert shuffled.run(), (shuffled.pair.trainer, [explorer.state for explorer in shuffled.pair.explorers])
    trained = Counter(group.task for epoch, step, group in shuffled.trained if _in_lineage(shuffled, epoch, step))
    assert max(trained.values()) == 1
    assert shuffled.pair.pool.done == tasks
    lost = sum(count for reason, count in shuffled.pair.dropped.items() if reason != "task_done_before")
    assert len(trained) >= tasks - lost


@given(balanced(), seeds, st.integers(0, 3), st.integers(1, 20))
@settings(deadline=None, max_examples=40)
def test_a_finished_taskset_ends_the_run_with_one_finish(
    settled: tuple[SyncPolicy, int], seed: int, faults: int, tasks: int
) -> None:
    policy, explorers = settled
    shuffled = ShuffledPair(
        policy, explorers, random.Random(seed), tasks=tasks, faults=faults, kinds=("cut",), late=True
    )
    assert shuffled.run(), (shuffled.pair.trainer, [explorer.state for explorer in shuffled.pair.explorers])
    assert [explorer.finishes for explorer in shuffled.pair.explorers] == [1] * explorers
    assert sorted(group.task for explorer in shuffled.pair.explorers for group in explorer.spool) == list(range(tasks))
    gone = sum(len(account.gone) for account in shuffled.pair.accounts)
    assert gone == tasks
    assert len(shuffled.trained) + sum(shuffled.pair.dropped.values()) == gone
    _check_the_books(shuffled)


@given(seeds, st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=40)
def test_fixed_runs_each_explore_step_on_the_version_of_the_formula(
    seed: int, interval: int, offset: int, batch: int, bounded: bool
) -> None:
    policy = SyncPolicy(
        Style.FIXED,
        interval,
        interval,
        offset,
        batch,
        batch,
        max_staleness=offset + interval - 1 if bounded else None,
        max_inflight_batches=random.Random(seed).randint(1, 3),
    )
    shuffled = ShuffledPair(policy, 1, random.Random(seed), total_steps=4 * interval)
    assert shuffled.run()
    for group in shuffled.begun:
        behind = (group.explore_step - 1 - offset) // interval
        assert group.oldest[1] == interval * max(0, behind)
    # The oldest of a window's groups is trained last when the explorer is `offset` steps ahead.
    assert max(step - group.oldest[1] for _, step, group in shuffled.trained) <= offset + interval - 1


@given(seeds, st.integers(1, 3), st.integers(1, 6), st.sampled_from(["trainer", "explorer"]))
@settings(deadline=None, max_examples=40)
def test_on_policy_stays_on_policy_through_restarts_of_one_side(
    seed: int, explorers: int, faults: int, side: str
) -> None:
    policy = SyncPolicy(Style.FIXED, groups_per_train_step=2 * explorers, groups_per_explore_step=2)
    kinds = ("cut", side)
    shuffled = ShuffledPair(
        policy, explorers, random.Random(seed), total_steps=STEPS, faults=faults, kinds=kinds, one_epoch_at_a_time=True
    )
    assert shuffled.run()
    assert {step - group.oldest[1] for _, step, group in shuffled.trained} == {0}


@given(seeds, st.integers(1, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_a_reproducible_run_trains_the_same_groups_on_the_same_versions_whatever_fails(
    seed: int, interval: int, offset: int, batch: int, faults: int
) -> None:
    policy = SyncPolicy(Style.FIXED, interval, interval, offset, batch, batch, repeats_windows=False, reproducible=True)
    shuffled = ShuffledPair(
        policy, 1, random.Random(seed), total_steps=4 * interval, faults=faults, kinds=("cut", "explorer", "trainer")
    )
    assert shuffled.run(), (shuffled.pair.trainer, shuffled.pair.explorers[0].state)
    for group in shuffled.begun:
        assert group.oldest[1] == interval * max(0, (group.explore_step - 1 - offset) // interval)
    lineage: dict[int, list[tuple[int, int]]] = {}
    for epoch, step, group in shuffled.trained:
        if _in_lineage(shuffled, epoch, step):
            lineage.setdefault(step, []).append((group.ordinal, group.task))
    # By hand: the groups in order, each on the task of its own number.
    assert lineage == {
        step: [(number, number) for number in range(step * batch, (step + 1) * batch)] for step in range(4 * interval)
    }
    assert not shuffled.pair.dropped


@given(balanced(), seeds, st.integers(0, 4))
@settings(deadline=None, max_examples=40)
def test_nothing_staler_than_the_bound_is_trained_and_credit_never_passes_the_queue(
    settled: tuple[SyncPolicy, int], seed: int, faults: int
) -> None:
    policy, explorers = settled
    policy = replace(policy, max_queued_groups=policy.max_queued_groups + 2 * STEPS * policy.groups_per_train_step)
    shuffled = ShuffledPair(policy, explorers, random.Random(seed), total_steps=STEPS, faults=faults)
    pair = shuffled.pair
    feed = pair.feed_trainer

    def watched(event: object) -> None:
        granted = {name: view.granted for name, view in pair.trainer.explorers.items()}
        feed(event)  # type: ignore[arg-type]
        more = {name: view.granted - granted.get(name, view.granted) for name, view in pair.trainer.explorers.items()}
        if any(count > 0 for count in more.values()):
            assert outstanding(pair.trainer) <= policy.max_queued_groups

    pair.feed_trainer = watched  # type: ignore[method-assign,assignment]
    assert shuffled.run()
    if policy.max_staleness is not None:
        assert all(step - group.oldest[1] <= policy.max_staleness for _, step, group in shuffled.trained)


@given(
    st.builds(
        SyncPolicy,
        styles,
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(0, 3),
        st.integers(1, 4),
        st.integers(1, 4),
        st.none() | st.integers(0, 5),
        st.integers(1, 3),
        st.integers(1, 16),
    ),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=80)
def test_what_the_closed_form_refuses_the_simulator_refuses_too(policy: SyncPolicy, explorers: int) -> None:
    if find_hang(policy, explorers, STEPS) is not None:
        assert find_deadlock(policy, explorers, STEPS) is not None


@given(balanced(max_explorers=3), seeds, st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_an_illegal_event_raises_and_changes_nothing(settled: tuple[SyncPolicy, int], seed: int, faults: int) -> None:
    policy, explorers = settled
    shuffled = ShuffledPair(policy, explorers, random.Random(seed), total_steps=STEPS, faults=faults)
    with contextlib.suppress(AssertionError):  # it is stopped somewhere on its way
        shuffled.run(happenings=random.Random(seed).randint(1, 60))
    trainer, explorer = shuffled.pair.trainer, shuffled.pair.explorers[0].state
    kept = repr(trainer), repr(explorer)
    known = next(iter(trainer.explorers), "nobody")
    received = trainer.explorers[known].received if trainer.explorers else 0
    for event in (
        TrainStepStarted(((known, received + 1),)),
        TrainStepStarted(()) if trainer.training else TrainStepDone(),
        GroupsReceived("stranger", 1),
        ExplorerLeft("stranger"),
        WeightsDelivered("stranger", 1),
    ):
        with pytest.raises(IllegalEvent):
            trainer_machine.step(trainer, event, policy)
    with pytest.raises(IllegalEvent):
        explorer_machine.step(explorer, GroupFinished(explorer.explore_step + 1), policy)
    if explorer.version > (0, 0):
        for late in (WeightsStaged(0, 0), WeightsApplied(0, 0)):
            with pytest.raises(IllegalEvent):
                explorer_machine.step(explorer, late, policy)
    assert kept == (repr(trainer), repr(explorer))


def _check_the_books(shuffled: ShuffledPair) -> None:
    """Versions only grow at an explorer; every group is spooled once, and no group is trained twice in a lineage."""
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    for explorer, life, version in shuffled.swaps:
        assert version > newest.get((explorer, life), (0, 0))
        newest[explorer, life] = version
    pair = shuffled.pair
    for explorer in pair.explorers:
        ordinals = [group.ordinal for group in explorer.spool]
        assert len(set(ordinals)) == len(ordinals)
        assert set(ordinals) | set(explorer.running) == set(range(explorer.state.started))
    counts = Counter(
        (group.explorer, group.place) for epoch, step, group in shuffled.trained if _in_lineage(shuffled, epoch, step)
    )
    assert max(counts.values(), default=1) == 1
    held = sum(
        (max(view.granted, view.received) if view.takes_part else view.received) - view.gone
        for view in pair.trainer.explorers.values()
    )
    assert pair.trainer.explorers.tally.held == held


def _in_lineage(shuffled: ShuffledPair, epoch: int, step: int) -> bool:
    """Whether the step that began at `step` of this epoch is part of the present state."""
    ends = {past: end for past, end in shuffled.pair.lineage.resumed if past >= epoch}
    return epoch == shuffled.pair.epoch or (epoch in ends and step < min(ends.values()))
