"""Who gets credit for how many groups, and how much there may be of it; the rules are in `trainer_machine`."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

from common.sync.actions import Grant, TrainerAction
from common.sync.explorer_views import ExplorerView
from common.sync.policy import Style, SyncPolicy
from common.sync.trainer_state import TrainerSyncState, outstanding, with_view


def grant(
    state: TrainerSyncState, policy: SyncPolicy, names: Iterable[str]
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    """Grants what those of `names` can use now, one group after the other to whoever has the fewest open."""
    held = outstanding(state)
    # Nobody runs on a newer version than the published one, so nobody's ceiling is higher than that version's.
    if state.ending or state.published is None or held >= _ceiling(state, state.published, policy):
        return state, ()
    most = state.tasks_left if state.tasks_left is not None else policy.max_queued_groups
    ceilings = {
        name: _ceiling(state, view.applied, policy)
        for name in names
        if (view := state.explorers[name]).takes_part
        and not view.stands
        and view.applied is not None
        and view.granted < _useful(view, policy)
    }
    given = dict.fromkeys(ceilings, 0)
    # fixed publishes nothing until the last explorer has come through its window: who is behind is served first.
    behind_first = policy.style is Style.FIXED
    order = [
        (state.explorers[name].window or 0 if behind_first else 0, state.explorers[name].open, name)
        for name, ceiling in ceilings.items()
        if held < ceiling
    ]
    heapq.heapify(order)
    while order and most > 0:
        window, open_groups, name = heapq.heappop(order)
        view = state.explorers[name]
        if held >= ceilings[name] or view.granted + given[name] >= _useful(view, policy):
            continue
        given[name] += 1
        held += 1
        most -= 1
        heapq.heappush(order, (window, open_groups + 1, name))
    if not any(given.values()):
        return state, ()
    grants: list[TrainerAction] = []
    for name, count in given.items():
        if count:
            view = state.explorers[name]
            state = with_view(state, name, replace(view, granted=view.granted + count))
            grants.append(Grant(name, count, view.applied or 0))
    return replace(state, tasks_left=most if state.tasks_left is not None else None), tuple(grants)


def _useful(view: ExplorerView, policy: SyncPolicy) -> int:
    """The limit up to which it can use credit soon."""
    if policy.style is Style.FIXED:
        return view.need
    return view.received + (policy.max_inflight_batches + 1) * policy.groups_per_explore_step


def _ceiling(state: TrainerSyncState, version: int, policy: SyncPolicy) -> int:
    """Groups that may be outstanding before one more, made with this version, would be too stale or too many."""
    if policy.max_staleness is None or policy.style is Style.FIXED:
        return policy.max_queued_groups
    fresh = (version + 1 + policy.max_staleness - state.step) * policy.groups_per_train_step
    return min(policy.max_queued_groups, fresh)
