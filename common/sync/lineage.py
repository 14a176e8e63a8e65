"""Which policy versions the run's present state descends from.

A trainer that restarts goes on from a checkpoint; the steps after it are lost, and so are the weights of those steps.
What was made with them comes 'from the future': it is not of this run's lineage, and is never trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Lineage:
    """For each earlier run epoch, the last step that the present state descends from."""

    epoch: int
    """The present run epoch."""
    resumed: tuple[tuple[int, int], ...] = ()
    """(epoch, step): the epoch that ended, and the step of the checkpoint from which the next one went on."""
    dead: tuple[tuple[int, int, int], ...] = ()
    """(epoch, epoch, step): one from which nothing went on, and the weights that it began with; epoch 0: the initial ones. One
    that is in neither list may have begun with any: nothing of it is held."""

    def holds(self, run_epoch: int, step: int) -> bool:
        """Whether weights of this epoch and step are among the present state's ancestors."""
        if run_epoch == self.epoch:
            return True
        if run_epoch > self.epoch:
            return False
        if any(step > resumed for epoch, resumed in self.resumed if epoch >= run_epoch):
            return False
        if any(epoch == run_epoch for epoch, _ in self.resumed):
            return True
        return any(
            epoch == run_epoch and step == began and (before == 0 or self.holds(before, began))
            for epoch, before, began in self.dead
        )

    def next(self, epoch: int, step: int) -> Lineage:
        """The lineage of a trainer that goes on, as `epoch`, from this state at `step`; of dead epochs it knows nothing."""
        return Lineage(epoch, (*self.resumed, (self.epoch, step)))

    def knowing(self, begun: Mapping[int, tuple[int, int]]) -> Lineage:
        """With what each earlier epoch began with: (epoch, step), epoch 0 for the initial weights."""
        alive = {epoch for epoch, _ in self.resumed}
        dead = (
            (epoch, *of)
            for epoch, of in sorted(begun.items())
            if epoch < self.epoch and epoch not in alive and of[0] < epoch
        )
        return replace(self, dead=tuple(dead))

    def state(self) -> list[list[int]]:
        """As JSON."""
        return [[epoch, step] for epoch, step in self.resumed]


def restore(epoch: int, resumed: Sequence[Sequence[int]]) -> Lineage:
    """The lineage that `Lineage.state` gave, at the epoch that wrote it."""
    return Lineage(epoch, tuple((int(pair[0]), int(pair[1])) for pair in resumed))
