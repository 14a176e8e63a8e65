"""Where the trainer's schedule stands: plain values, and the counts that are kept with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from common.sync.events import ExplorerWaits
from common.sync.policy import SyncPolicy


class IllegalEvent(ValueError):
    """An event that cannot happen in this state: a fault of the driver."""


@dataclass(frozen=True, slots=True)
class ExplorerView:
    """One explorer as the schedule sees it."""

    connected: bool = True
    finished: bool = False
    """It said that nothing more comes, it was given nothing since, and there is nothing more to give."""
    finished_at: int | None = None
    """Groups that it had started when it said so."""
    given_up: bool = False
    """It left and is not expected back."""
    applied: int | None = None
    """Step of the version that it runs on; None = none of this run epoch."""
    target: int | None = None
    """Step of the version that is on its way to it."""
    owed: bool = False
    """It came (back) with another version than the published one."""
    asking: bool = False
    """It waits for the answer to a RequestSync."""
    granted: int = 0
    """Credit limit: groups with an ordinal below may be started."""
    received: int = 0
    """Groups that arrived."""
    gone: int = 0
    """Groups that arrived and were trained or dropped."""
    window: int | None = None
    """fixed: step of the version that was applied last, of any stream; None before the first."""
    need: int = 0
    """fixed: the ordinal at which its window ends; more where that is not known for sure."""
    oldest: int | None = None
    """Step of the oldest version that a group in flight was begun on; None: it has not said."""
    waits: ExplorerWaits | None = None
    """fixed: what it said last when it came to a boundary."""

    @property
    def open(self) -> int:
        """Groups granted that have not arrived."""
        return self.granted - self.received

    @property
    def takes_part(self) -> bool:
        """Whether the schedule waits for it."""
        return self.connected and not self.finished

    @property
    def stands(self) -> bool:
        """fixed: whether it starts nothing more on its version; the word that it has it may come later."""
        return self.waits is not None and self.waits.step == self.applied


@dataclass(frozen=True, slots=True)
class TrainerSyncState:
    """Where the trainer's schedule stands."""

    step: int = 0
    """Steps done: t."""
    published: int | None = None
    """Step of the version that was published last."""
    training: bool = False
    """A step runs now."""
    in_step: int = 0
    """Groups that the running step consumes."""
    ending: bool = False
    """The final weights go out, whatever the interval."""
    explorers: Mapping[str, ExplorerView] = field(default_factory=lambda: MappingProxyType({}))
    held: int = 0
    """Groups granted or received, by any explorer, and neither gone nor in the running step."""
    tasks_left: int | None = None
    """Tasks that no group was granted for; None: endless."""


def begun_at(step: int, policy: SyncPolicy) -> TrainerSyncState:
    """Where a trainer stands that goes on after so many steps; no task is known yet.

    It publishes what it begins with. Reproducible: not between two publications of the schedule, where the explorer, which keeps
    its weights, has the version before.
    """
    between = step % policy.trainer_interval
    published = step - between if policy.reproducible and between else None
    return TrainerSyncState(step=step, published=published, tasks_left=0)


def outstanding(state: TrainerSyncState) -> int:
    """Groups granted or received, by any explorer, and not trained or dropped."""
    return state.held + state.in_step


def explorer_view(state: TrainerSyncState, name: str) -> ExplorerView:
    """The explorer's view. Raises IllegalEvent for one that never joined."""
    if name not in state.explorers:
        raise IllegalEvent(f"unknown explorer {name!r}; known are {', '.join(state.explorers) or 'none'}")
    return state.explorers[name]


def with_view(state: TrainerSyncState, name: str, view: ExplorerView) -> TrainerSyncState:
    """The state with this view in place of the one before, and the count of held groups with it."""
    before = state.explorers.get(name)
    held = state.held + _held_by(view) - (_held_by(before) if before is not None else 0)
    return replace(state, explorers=MappingProxyType({**state.explorers, name: view}), held=held)


def _held_by(view: ExplorerView) -> int:
    """Groups that it may still start or that are in the trainer; what one that left had not started is lent to others."""
    return (max(view.granted, view.received) if view.takes_part else view.received) - view.gone
