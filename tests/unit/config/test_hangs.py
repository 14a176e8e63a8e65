"""What the closed form calls a hang is one: both state machines are driven as far as they go, and stop there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.config.hangs import find_hang
from common.sync.policy import Style, SyncPolicy
from tests.support.shuffled_pair import ShuffledPair


def reached(policy: SyncPolicy, count: int, seed: int, steps: int) -> int:
    # A window is repeated where groups were lost, not to make up for a schedule that does not work out.
    alone = replace(policy, repeats_windows=False)
    shuffled = ShuffledPair(alone, count, random.Random(seed), total_steps=steps)
    shuffled.run()
    return shuffled.pair.trainer.step


def policies(style: Style, count: int, seed: int) -> Iterator[SyncPolicy]:
    grid = itertools.product((1, 2, 3), (1, 2), (0, 1, 3), (1, 2, 3), (1, 2, 4), (None, 0, 1, 2, 5), (1, 4, 9))
    for t, m, n, b, e, s, q in random.Random(seed).sample(list(grid), count):
        yield SyncPolicy(style, t, m, n, b, e, s, 2, q)


STEPS = 24


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("style", list(Style))
def test_a_found_hang_stops_the_pair_at_the_named_step_whatever_the_timing(style: Style, count: int) -> None:
    found = 0
    for seed, policy in enumerate(policies(style, 80, 1)):
        hang = find_hang(policy, count, STEPS)
        if hang is None:
            continue
        found += 1
        assert reached(policy, count, seed, STEPS) <= hang.trainer_steps, (policy, hang)
    assert found > 5


def test_a_fixed_pair_of_one_explorer_hangs_exactly_where_the_closed_form_says() -> None:
    for seed, policy in enumerate(policies(Style.FIXED, 120, 2)):
        if policy.max_staleness is not None and policy.max_staleness >= 2 * policy.trainer_interval:
            continue  # which groups are dropped, and so whether the queue fills up, hangs on the timing
        hang = find_hang(policy, 1, STEPS)
        steps = reached(policy, 1, seed, STEPS)
        if policy.max_staleness is None:
            assert steps == (hang.trainer_steps if hang else STEPS), (policy, hang)
        else:  # what is dropped can bring the end about earlier
            assert (steps == STEPS) == (hang is None), (policy, hang)


def test_a_run_that_ends_before_the_hang_is_not_refused() -> None:
    # 8 groups a window, 16 needed to publish; the offset of 4 steps lends 32, so windows 1 to 4 are served.
    policy = SyncPolicy(Style.FIXED, 2, 1, 4, 8, 8)
    hang = find_hang(policy, 1, None)
    assert hang is not None
    assert reached(policy, 1, 0, 100) == hang.trainer_steps
    assert find_hang(policy, 1, hang.trainer_steps) is None
    assert find_hang(policy, 1, hang.trainer_steps + 1) is not None
