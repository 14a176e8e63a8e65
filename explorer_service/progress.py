"""What an explorer has begun, as it is kept in the spool: nothing is skipped, nothing is made twice.

It is committed together with each batch. A group that is in flight when the explorer dies is made again after its
restart, with the same ordinal, the same task and the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from common.errors import StorageFailed
from common.sync.explorer_machine import ExplorerSyncState, Phase


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group that is to be made."""

    ordinal: int
    explore_step: int
    position: int
    """Of its task, in the run's order of tasks."""


class Progress:
    """The groups in flight."""

    def __init__(self) -> None:
        self.in_flight: dict[int, GroupPlan] = {}
        """By ordinal."""

    def plan(self, ordinal: int, explore_step: int, position: int) -> GroupPlan:
        """A group is begun, or begun anew with another task."""
        plan = GroupPlan(ordinal, explore_step, position)
        self.in_flight[ordinal] = plan
        return plan

    def done(self, ordinal: int) -> None:
        """The group is in a batch."""
        del self.in_flight[ordinal]

    def state(self, sync: ExplorerSyncState) -> dict[str, Any]:
        """As JSON, together with the sync machine's counters."""
        return {
            "in_flight": [[plan.ordinal, plan.explore_step, plan.position] for plan in self.in_flight.values()],
            "explore_step": sync.explore_step,
            "unstarted": sync.unstarted,
            "started": sync.started,
            "phase": sync.phase.value,
            "window": sync.window,
            "taskset_ended": sync.taskset_ended,
        }


def restore(state: Mapping[str, Any]) -> tuple[Progress, ExplorerSyncState]:
    """Where an earlier incarnation stood; the start for an empty state. Raises StorageFailed."""
    progress = Progress()
    if not state:
        return progress, ExplorerSyncState()
    try:
        for ordinal, explore_step, position in state["in_flight"]:
            progress.in_flight[ordinal] = GroupPlan(ordinal, explore_step, position)
        by_step: dict[int, int] = {}
        for plan in progress.in_flight.values():
            by_step[plan.explore_step] = by_step.get(plan.explore_step, 0) + 1
        started = int(state["started"])
        sync = ExplorerSyncState(
            phase=Phase(state["phase"]),
            window=int(state["window"]) if state["window"] is not None else None,
            explore_step=int(state["explore_step"]),
            unstarted=int(state["unstarted"]),
            started=started,
            credit_limit=started,
            in_flight=MappingProxyType(by_step),
            taskset_ended=bool(state["taskset_ended"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StorageFailed(f"the spool's state of the explorer is malformed: {error}") from error
    return progress, sync
