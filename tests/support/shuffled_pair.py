"""A pair in which everything that takes time takes any time: what happens next is drawn. And in which anything may fail."""

from __future__ import annotations

import random
from collections import deque

from common.sync.happening import Group, Happening, Kind
from common.sync.pair import Pair
from common.sync.parties import Checkpoint
from common.sync.policy import SyncPolicy


class ShuffledPair:
    """`faults` is the number of faults that happen, at drawn moments, each mended after a drawn while.

    `one_epoch_at_a_time`: none happens while an explorer still has to take the first version of a restarted trainer. One
    that misses it cannot know which of its groups are lost.
    """

    def __init__(
        self,
        policy: SyncPolicy,
        explorers: int,
        pick: random.Random,
        *,
        total_steps: int | None = None,
        tasks: int | None = None,
        faults: int = 0,
        kinds: tuple[str, ...] = ("cut", "explorer", "trainer"),
        late: bool = False,
        one_epoch_at_a_time: bool = False,
    ) -> None:
        self.pick = pick
        self.channels: dict[tuple[object, ...], deque[Happening]] = {}
        self.pair = Pair(policy, explorers, self._post, total_steps=total_steps, tasks=tasks)
        self.trained: list[tuple[int, int, Group]] = []
        """(run epoch, steps done when it was taken, group)."""
        self.begun: list[Group] = []
        self.swaps: list[tuple[int, int, tuple[int, int]]] = []
        """(explorer, its incarnation, version)."""
        self.checkpoints: list[Checkpoint] = [self.pair.checkpoint()]
        self.faults = faults
        self.kinds = kinds
        self.one_epoch_at_a_time = one_epoch_at_a_time
        self.away = set(range(explorers))
        self.gone: set[int] = set()
        """Explorers that do not come back."""
        if not late:
            for index in range(explorers):
                self._join(index)

    def run(self, happenings: int = 200_000) -> bool:
        """Whether the run came to its end; False: nothing can happen any more."""
        for _ in range(happenings):
            self.pair.drop_stale()
            if not self.pair.ending and self.pair.is_over() and not self.away:
                self.pair.begin_end()
            if self.pair.ending and self.pair.end():
                return True
            if self.faults and self.pick.random() < 0.04:
                self.faults -= 1
                self._fail()
            if not self._one_thing():
                return False
        raise AssertionError("the run does not end")

    def _one_thing(self) -> bool:
        heads = [channel for channel, waiting in self.channels.items() if waiting]
        can_train = not self.pair.ending and self.pair.can_train()
        options = len(heads) + can_train + len(self.away)
        if not options:
            return False
        choice = self.pick.randrange(options)
        if choice < len(heads):
            happening = self.channels[heads[choice]].popleft()
            if not self.channels[heads[choice]]:
                del self.channels[heads[choice]]
            self._happen(happening)
        elif choice < len(heads) + can_train:
            self.pair.start_training()
            step = self.pair.trainer.step
            self.trained += [(self.pair.epoch, step, group) for group in self.pair.batch]
        else:
            self._join(sorted(self.away)[choice - len(heads) - can_train])
        return True

    def _happen(self, happening: Happening) -> None:
        if happening.kind is Kind.SWAP and happening.incarnation == self.pair.explorers[happening.explorer].life:
            self.swaps.append((happening.explorer, happening.incarnation, happening.version))
        step = self.pair.trainer.step
        self.pair.happen(happening)
        if self.pair.trainer.step > step and self.pick.random() < 0.4:
            self.checkpoints.append(self.pair.checkpoint())

    def _fail(self) -> None:
        epochs = {explorer.state.version[0] for explorer in self.pair.explorers}
        if self.one_epoch_at_a_time and min(epochs) < self.pair.epoch > 1:
            return
        index = self.pick.choice(sorted(set(range(len(self.pair.explorers))) - self.gone))
        match self.pick.choice(self.kinds):
            case "cut":
                self.pair.cut(index)
                self.away.add(index)
            case "gone":
                if len(self.gone) + 1 < len(self.pair.explorers):
                    self.gone.add(index)
                    self.away.discard(index)
                    self.pair.give_up(index)
            case "explorer":
                self.pair.restart_explorer(index)
                self.away.add(index)
            case _:
                if self.pair.ending:
                    return
                self.pair.restart_trainer(self.checkpoints[-1])
                self.away |= set(range(len(self.pair.explorers))) - self.gone
                for gone in self.gone:
                    self.pair.give_up(gone)

    def _join(self, index: int) -> None:
        self.away.discard(index)
        self.pair.join(index)

    def _post(self, happening: Happening) -> None:
        if happening.kind is Kind.ROLLOUT and happening.group is not None:
            self.begun.append(happening.group)
        self.channels.setdefault(happening.channel, deque()).append(happening)
