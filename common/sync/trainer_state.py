"""Where the trainer's schedule stands: plain values, and the counts that are kept with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from common.sync.explorer_views import ExplorerView, ExplorerViews
from common.sync.policy import SyncPolicy


class IllegalEvent(ValueError):
    """An event that cannot happen in this state: a fault of the driver."""


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
    explorers: ExplorerViews = field(default_factory=ExplorerViews)
    behind: int = 0
    """Explorers that take part and have not applied the published version."""
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
    return state.explorers.tally.held + state.in_step


def explorer_view(state: TrainerSyncState, name: str) -> ExplorerView:
    """The explorer's view. Raises IllegalEvent for one that never joined."""
    if name not in state.explorers:
        raise IllegalEvent(f"unknown explorer {name!r}; known are {', '.join(state.explorers) or 'none'}")
    return state.explorers[name]


def with_view(state: TrainerSyncState, name: str, view: ExplorerView) -> TrainerSyncState:
    """The state with this view in place of the one before, and the counts with it."""
    before = state.explorers.get(name)
    was_behind = before is not None and is_behind(before, state.published)
    behind = state.behind - was_behind + is_behind(view, state.published)
    return replace(state, explorers=state.explorers.put(name, view), behind=behind)


def with_published(state: TrainerSyncState, step: int) -> TrainerSyncState:
    """The state with this version as the one that was published last."""
    behind = sum(is_behind(view, step) for view in state.explorers.values())
    return replace(state, published=step, behind=behind)


def is_behind(view: ExplorerView, published: int | None) -> bool:
    """Whether it takes part, and runs on another version than this one."""
    return published is not None and view.takes_part and view.applied != published
