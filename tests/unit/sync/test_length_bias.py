"""Long responses take long: whether they are trained as often as they are generated."""

import random
import statistics

import pytest

from common.sync.happening import Group, Happening, Kind
from common.sync.policy import Style, SyncPolicy
from common.sync.simulate import Durations, Simulation

STEPS = 300
EXPLORERS = 4


def length(group: Group) -> float:
    """Tokens: log-normal, so that some are many times as long as others."""
    return random.Random(f"length {group.explorer} {group.ordinal}").lognormvariate(4, 0.8)


def seconds(group: Group) -> float:
    """Grows with the length, with chance on top."""
    return 0.1 + length(group) / 60 * random.Random(f"delay {group.explorer} {group.ordinal}").uniform(0.5, 1.5)


class Watched(Simulation):
    """Keeps what was begun and what was trained."""

    def __init__(self, policy: SyncPolicy) -> None:
        self.begun: list[Group] = []
        self.trained: list[Group] = []
        durations = Durations(rollout=seconds, train=0.5, push=0.1, latency=0.01)
        super().__init__(policy, EXPLORERS, durations=durations, total_steps=STEPS, tasks=None)

    def _post(self, happening: Happening) -> None:
        if happening.kind is Kind.ROLLOUT and happening.group is not None:
            self.begun.append(happening.group)
        elif happening.kind is Kind.TRAIN:
            self.trained += self.pair.batch
        super()._post(happening)


def bias(policy: SyncPolicy) -> float:
    """The mean length of what is trained against that of what was generated, in per cent."""
    watched = Watched(policy)
    assert watched.run().finished
    return 100 * (statistics.mean(map(length, watched.trained)) / statistics.mean(map(length, watched.begun)) - 1)


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("max_staleness", [1, 2, 4, None])
def test_long_responses_are_trained_as_often_as_they_are_generated(style: Style, max_staleness: int | None) -> None:
    fixed = style is Style.FIXED
    policy = SyncPolicy(style, 1, 1, int(fixed), 16, 4 if fixed else 8, max_staleness, 2, 256)
    assert abs(bias(policy)) < 2


def test_dropping_slow_groups_would_leave_long_responses_out() -> None:
    policy = SyncPolicy(Style.FULLY_ASYNC, 1, 1, 0, 16, 8, 2, 2, 256, waits_for_slow=False)
    assert bias(policy) < -5
