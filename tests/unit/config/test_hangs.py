"""What the closed form calls a hang is one: both state machines are driven as far as they go, and stop there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from common.config.hangs import find_hang
from common.sync import explorer_machine, trainer_machine
from common.sync.actions import AnswerSync, ApplyWeights, AskForSync, Deliver, Grant, Publish, StartGroups
from common.sync.events import (
    CreditGranted,
    ExplorerEvent,
    ExplorerJoined,
    GroupFinished,
    GroupsReceived,
    NothingNewer,
    SyncRequested,
    TrainerEvent,
    TrainStepDone,
    TrainStepStarted,
    WeightsApplied,
    WeightsDelivered,
    WeightsStaged,
)
from common.sync.policy import Style, SyncPolicy


class Pair:
    """A trainer and its explorers with an endless taskset; `pick` chooses among the events that are possible."""

    def __init__(self, policy: SyncPolicy, count: int, pick: random.Random) -> None:
        self.policy = policy
        self.pick = pick
        self.names = [f"e{index}" for index in range(count)]
        self.explorers = {name: explorer_machine.ExplorerSyncState() for name in self.names}
        self.trainer = trainer_machine.TrainerSyncState(published=0)
        self.pending: list[tuple[str, Any]] = []
        self.queue: list[str] = []
        for name in self.names:
            self.tell_trainer(ExplorerJoined(name, None, 0, 0, 0))

    def tell_trainer(self, event: TrainerEvent) -> None:
        self.trainer, actions = trainer_machine.step(self.trainer, event, self.policy)
        for action in actions:
            match action:
                case Publish(step, receivers):
                    self.pending += [(name, WeightsStaged(1, step)) for name in receivers]
                case Deliver(step, name):
                    self.pending.append((name, WeightsStaged(1, step)))
                case Grant(name, limit, min_step):
                    self.pending.append((name, CreditGranted(limit, min_step)))
                case AnswerSync(name, newer, _):
                    if not newer:
                        self.pending.append((name, NothingNewer()))

    def tell_explorer(self, name: str, event: ExplorerEvent) -> None:
        if isinstance(event, WeightsStaged) and (event.epoch, event.step) < self.explorers[name].version:
            return
        self.explorers[name], actions = explorer_machine.step(self.explorers[name], event, self.policy)
        for action in actions:
            match action:
                case StartGroups(explore_step, count, _):
                    self.pending += [(name, GroupFinished(explore_step))] * count
                case ApplyWeights(epoch, version):
                    self.pending.append((name, WeightsApplied(epoch, version)))
                case AskForSync():
                    self.pending.append(("trainer", SyncRequested(name)))

    def run(self, steps: int) -> int:
        """Trainer steps done when it has made `steps`, or nothing is possible any more."""
        while self.trainer.step < steps:
            batch = self.policy.groups_per_train_step
            can_train = len(self.queue) >= batch and trainer_machine.may_train(self.trainer, self.policy)
            options = len(self.pending) + (1 if can_train or self.trainer.training else 0)
            if options == 0:
                return self.trainer.step
            choice = self.pick.randrange(options)
            if choice < len(self.pending):
                name, event = self.pending.pop(choice)
                self._happen(name, event)
            elif self.trainer.training:
                self.tell_trainer(TrainStepDone())
            else:
                taken, self.queue = self.queue[:batch], self.queue[batch:]
                groups = tuple((name, taken.count(name)) for name in self.names)
                self.tell_trainer(TrainStepStarted(groups))
        return self.trainer.step

    def _happen(self, name: str, event: Any) -> None:
        if name == "trainer":
            self.tell_trainer(event)
            return
        self.tell_explorer(name, event)
        if isinstance(event, GroupFinished):
            self.tell_trainer(GroupsReceived(name, 1))
            self.queue.append(name)
        if isinstance(event, WeightsApplied):
            self.tell_trainer(WeightsDelivered(name, event.step))


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
        reached = Pair(policy, count, random.Random(seed)).run(STEPS)
        assert reached <= hang.trainer_steps, (policy, hang)
    assert found > 5


def test_a_fixed_pair_of_one_explorer_hangs_exactly_where_the_closed_form_says() -> None:
    for seed, policy in enumerate(policies(Style.FIXED, 120, 2)):
        hang = find_hang(policy, 1, STEPS)
        reached = Pair(policy, 1, random.Random(seed)).run(STEPS)
        assert reached == (hang.trainer_steps if hang else STEPS), (policy, hang)


def test_a_run_that_ends_before_the_hang_is_not_refused() -> None:
    # 8 groups a window, 16 needed to publish; the offset of 4 steps lends 32, so windows 1 to 4 are served.
    policy = SyncPolicy(Style.FIXED, 2, 1, 4, 8, 8)
    hang = find_hang(policy, 1, None)
    assert hang is not None
    assert Pair(policy, 1, random.Random(0)).run(100) == hang.trainer_steps
    assert find_hang(policy, 1, hang.trainer_steps) is None
    assert find_hang(policy, 1, hang.trainer_steps + 1) is not None
