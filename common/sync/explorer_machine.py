"""The explorer's half of the schedule: `step(state, event, policy) -> (state, actions)`.

Rules (DESIGN section 5), checked after every event:

* Groups are started one by one, as far as credit goes, explore step after explore step; at most
  `max_inflight_batches` explore steps have groups in flight.
* When all groups of a step e are started and e is a boundary (e > n and (e - n) mod M = 0), nothing more is started until
  those in flight are finished (drained); then
  - fixed: says so, gives back what credit is left, and waits until a newer version is applied or the trainer, which
    lacks groups, has it make another window on the same version;
  - trainer_driven: applies a newer version if one is staged, and goes on;
  - explorer_driven: asks, and goes on when a newer version is applied or the answer is 'nothing newer'.
  fully_async has no boundaries: it applies a version whenever it comes.
* trainer_driven and explorer_driven also apply a staged version when nothing is in flight and credit is used up: what is
  made on the version before would be too stale, and no boundary can be reached without credit.
* A version of a newer run epoch (the trainer restarted), the first version of all, and one that comes when nothing more
  is to be made, need no boundary: they are applied as soon as nothing is in flight.
* fixed counts in windows: what is made between two boundaries. Window j runs on a version v with v div T = j, and the
  trainer needs window j whole to come to (j + 1)T. So versions that need no boundary change no window:
  - one of the same j (either side has restarted): the window, or the wait at its end, goes on;
  - one of a later j: the window is finished with it, and the boundary after it does not wait;
  - one of an earlier j (steps were lost with the trainer): window j was made, and is in the spool or trained, so its end
    is waited at; what was made of later windows is lost, and they are made again, whole. But if groups of window j were
    acknowledged already (the trainer goes on from before its newest checkpoint), it is made again too.
* fixed and reproducible: a version is applied at a boundary alone, whatever its run epoch, and none that is not newer than
  the live one. An explorer that restarts has kept its version: the first one that is applied is that one.

An illegal event raises `IllegalEvent` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from common.sync.actions import (
    ApplyWeights,
    AskForSync,
    ExplorerAction,
    ExploreStepEnded,
    Finish,
    ReportWaiting,
    StartGroups,
)
from common.sync.events import (
    CreditGranted,
    CreditRevoked,
    DrainRequested,
    ExplorerEvent,
    GroupFinished,
    NothingNewer,
    TasksEnded,
    WeightsApplied,
    WeightsStaged,
    WindowRepeated,
)
from common.sync.policy import Style, SyncPolicy
from common.sync.trainer_state import IllegalEvent

Version = tuple[int, int]
"""(run epoch, step), compared in that order."""


class Phase(StrEnum):
    """What the schedule lets the explorer do."""

    EXPLORING = "exploring"
    """Start groups."""
    DRAINING = "draining"
    """At a boundary: finish what is in flight."""
    WAITING = "waiting"
    """fixed, at a boundary: a newer version must be applied first."""
    ASKING = "asking"
    """explorer_driven, at a boundary: as WAITING, or until the answer."""


@dataclass(frozen=True, slots=True)
class ExplorerSyncState:
    """Where the explorer's schedule stands."""

    phase: Phase = Phase.EXPLORING
    version: Version = (0, 0)
    """The live version; (0, 0) before the first."""
    window: int | None = None
    """fixed: step of the version that the present window is made for; None before the first version."""
    staged: Version | None = None
    """A newer version that is complete and verified."""
    applying: bool = False
    """A swap was ordered and is not done."""
    explore_step: int = 0
    """Explore steps started: e."""
    unstarted: int = 0
    """Groups of the newest explore step that are not started yet."""
    started: int = 0
    """Groups started in this run: the next group's ordinal."""
    credit_limit: int = 0
    """Groups with an ordinal below may be started."""
    credit_min_step: int = 0
    """... on a version at or above."""
    in_flight: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Groups in flight by explore step."""
    taskset_ended: bool = False
    draining_for_good: bool = False
    """A Drain was requested."""
    finished: bool = False
    """Finish was ordered."""


def step(
    state: ExplorerSyncState, event: ExplorerEvent, policy: SyncPolicy
) -> tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]:
    """Takes the event in, then does whatever has become possible."""
    stood = stands(state, policy)
    state, actions = _take_in(state, event, policy)
    done: list[ExplorerAction] = list(actions)
    while (advance := _advance(state, policy)) is not None:
        state, more = advance
        done.extend(more)
    if stands(state, policy) and (not stood or state.credit_limit > state.started):
        done.append(report_of_waiting(state))
        state = replace(state, credit_limit=state.started)
    return state, tuple(done)


def stands(state: ExplorerSyncState, policy: SyncPolicy) -> bool:
    """fixed: whether it is to say that it waits at its boundary, with nothing in flight.

    Reproducible: no, for nobody else is there to use the credit that it would give back, and tasks would lose their order.
    """
    if policy.reproducible:
        return False
    drained = not state.in_flight and not state.applying
    return state.phase is Phase.WAITING and drained and state.version != (0, 0)


def report_of_waiting(state: ExplorerSyncState) -> ReportWaiting:
    """fixed: what the trainer must know of an explorer that stands at its boundary, also when a new stream is open."""
    return ReportWaiting(*state.version, state.started, max(0, state.credit_limit - state.started))


def waiting_for(state: ExplorerSyncState, policy: SyncPolicy) -> str:
    """What the explorer waits for, in words; empty while it is busy or has ended."""
    if state.finished:
        return ""
    if state.version == (0, 0):
        return "the first weights from the trainer"
    if state.phase is Phase.WAITING:
        return f"a version newer than step {state.version[1]} ({policy.style.value}, after explore step {state.explore_step})"
    if state.phase is Phase.ASKING:
        return "the trainer's answer to RequestSync"
    if not state.in_flight and not _stops_making(state):
        return f"credit to start group {state.started} (limit {state.credit_limit})"
    return ""


def _take_in(
    state: ExplorerSyncState, event: ExplorerEvent, policy: SyncPolicy
) -> tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]:
    match event:
        case CreditGranted() | CreditRevoked() | WindowRepeated() | NothingNewer():
            return _told(state, event, policy), ()
        case WeightsStaged(epoch, version):
            if (epoch, version) < state.version:
                raise IllegalEvent(f"version {(epoch, version)} staged, {state.version} is live")
            return replace(state, staged=(epoch, version)), ()
        case WeightsApplied(epoch, version, window_lost):
            return _applied(state, (epoch, version), policy, window_lost=window_lost)
        case GroupFinished(explore_step):
            return _finish_group(state, explore_step)
        case TasksEnded():
            return _end_taskset(state)
        case DrainRequested():
            return replace(state, draining_for_good=True, unstarted=0), ()


def _told(
    state: ExplorerSyncState, word: CreditGranted | CreditRevoked | WindowRepeated | NothingNewer, policy: SyncPolicy
) -> ExplorerSyncState:
    match word:
        case CreditGranted(groups, min_step):
            if groups:
                # Tasks that were lost with a trainer, or an explorer, are given out again.
                state = replace(state, taskset_ended=False, finished=False)
            return replace(state, credit_limit=state.credit_limit + groups, credit_min_step=min_step)
        case CreditRevoked():
            return replace(state, credit_limit=state.started)
        case WindowRepeated(repeated):
            goes_on = stands(state, policy) and state.version[1] == repeated
            return replace(state, phase=Phase.EXPLORING) if goes_on else state
        case NothingNewer():
            return replace(state, phase=Phase.EXPLORING) if state.phase is Phase.ASKING else state


def _applied(
    state: ExplorerSyncState, version: Version, policy: SyncPolicy, *, window_lost: bool
) -> tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]:
    if version < state.version:
        raise IllegalEvent(f"version {version} applied after {state.version}")
    staged = None if state.staged is not None and state.staged <= version else state.staged
    state = replace(state, version=version, staged=staged, applying=False)
    if policy.style is not Style.FIXED:
        return replace(state, phase=Phase.EXPLORING), ()
    if state.window is None:
        return replace(state, window=version[1]), ()
    windows_ahead = _windows_ahead(state, policy)
    if windows_ahead > 0 and _is_drained_at_boundary(state):
        return _begin_window(state), ()
    if window_lost:
        return _give_up_window(state, Phase.EXPLORING, policy)
    if windows_ahead < 0:
        return _give_up_window(state, Phase.WAITING, policy)
    if version[1] < (state.window or 0):
        # The lost steps end within this very window.
        return _give_up_window(state, Phase.EXPLORING, policy)
    return state, ()


def _windows_ahead(state: ExplorerSyncState, policy: SyncPolicy) -> int:
    """fixed: by how many windows the live version is ahead of the one that the present window is made for."""
    interval = policy.trainer_interval
    return state.version[1] // interval - (state.window or 0) // interval


def _is_drained_at_boundary(state: ExplorerSyncState) -> bool:
    return not state.in_flight and state.phase in {Phase.DRAINING, Phase.WAITING, Phase.ASKING}


def _begin_window(state: ExplorerSyncState) -> ExplorerSyncState:
    return replace(state, phase=Phase.EXPLORING, window=state.version[1])


def _give_up_window(
    state: ExplorerSyncState, phase: Phase, policy: SyncPolicy
) -> tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]:
    """Stands at the next boundary, as if the explore steps up to it had been made: steps are counted once, lost or not."""
    begun_and_idle = state.unstarted > 0 and state.explore_step not in state.in_flight
    ended = (ExploreStepEnded(state.explore_step),) if begun_and_idle else ()
    boundary = policy.next_boundary(state.explore_step)
    return replace(state, phase=phase, window=state.version[1], explore_step=boundary, unstarted=0), ended


def _finish_group(state: ExplorerSyncState, explore_step: int) -> tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]:
    if explore_step not in state.in_flight:
        raise IllegalEvent(f"a group of explore step {explore_step} finished; none is in flight")
    in_flight = {**state.in_flight, explore_step: state.in_flight[explore_step] - 1}
    left = MappingProxyType({key: count for key, count in in_flight.items() if count})
    state = replace(state, in_flight=left)
    return state, _step_end(state, explore_step)


def _end_taskset(state: ExplorerSyncState) -> tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]:
    incomplete = state.unstarted > 0
    state = replace(state, taskset_ended=True, unstarted=0)
    return state, _step_end(state, state.explore_step) if incomplete else ()


def _step_end(state: ExplorerSyncState, explore_step: int) -> tuple[ExplorerAction, ...]:
    newest_is_incomplete = explore_step == state.explore_step and state.unstarted > 0
    if explore_step in state.in_flight or newest_is_incomplete:
        return ()
    return (ExploreStepEnded(explore_step),)


Advance = tuple[ExplorerSyncState, tuple[ExplorerAction, ...]]


def _advance(state: ExplorerSyncState, policy: SyncPolicy) -> Advance | None:
    """One thing that has become possible; None when there is nothing."""
    if state.applying:
        return None
    if state.staged is not None and _may_apply(state, policy):
        return replace(state, applying=True), (ApplyWeights(*state.staged),)
    if state.version == (0, 0) or _holds_for_new_epoch(state, policy):
        return None
    if _stops_making(state):
        if state.in_flight or state.finished or state.draining_for_good:
            return None
        return replace(state, finished=True), (Finish(),)
    match state.phase:
        case Phase.EXPLORING:
            return _explore(state, policy)
        case Phase.DRAINING:
            return _leave_boundary(state, policy)
        case _:
            return None


def _credit(state: ExplorerSyncState) -> int:
    """Groups that may be started now."""
    return state.credit_limit - state.started if state.version[1] >= state.credit_min_step else 0


def _stops_making(state: ExplorerSyncState) -> bool:
    return state.taskset_ended or state.draining_for_good


def _holds_for_new_epoch(state: ExplorerSyncState, policy: SyncPolicy) -> bool:
    return not policy.reproducible and state.staged is not None and state.staged[0] > state.version[0]


def _may_apply(state: ExplorerSyncState, policy: SyncPolicy) -> bool:
    # Before the first version nothing runs yet: what counts as in flight then was in flight before a restart.
    if policy.style is Style.FULLY_ASYNC or state.version == (0, 0):
        return True
    if state.in_flight:
        return False
    unbound = _holds_for_new_epoch(state, policy) or _stops_making(state)
    starved = policy.style is not Style.FIXED and state.phase is Phase.EXPLORING and _credit(state) <= 0
    at_boundary = state.phase in {Phase.WAITING, Phase.ASKING} or (
        state.phase is Phase.DRAINING and policy.style is not Style.EXPLORER_DRIVEN
    )
    # fixed skips no version: if the one for the next window is live already, the one that is staged is for a later window.
    early = policy.style is Style.FIXED and _windows_ahead(state, policy) > 0
    return unbound or (at_boundary and not early) or starved


def _explore(state: ExplorerSyncState, policy: SyncPolicy) -> Advance | None:
    if state.unstarted == 0 and len(state.in_flight) >= policy.max_inflight_batches:
        return None
    allowed = _credit(state)
    if allowed <= 0:
        return None
    if state.unstarted == 0:
        state = replace(state, explore_step=state.explore_step + 1, unstarted=policy.groups_per_explore_step)
    count = min(allowed, state.unstarted)
    in_flight = {**state.in_flight, state.explore_step: state.in_flight.get(state.explore_step, 0) + count}
    state = replace(
        state,
        unstarted=state.unstarted - count,
        started=state.started + count,
        in_flight=MappingProxyType(in_flight),
    )
    boundary = policy.style is not Style.FULLY_ASYNC and policy.is_boundary(state.explore_step)
    if state.unstarted == 0 and boundary:
        state = replace(state, phase=Phase.DRAINING)
    return state, (StartGroups(state.explore_step, count, state.started - count),)


def _leave_boundary(state: ExplorerSyncState, policy: SyncPolicy) -> Advance | None:
    """Drained, and no version is there to apply."""
    if state.in_flight:
        return None
    match policy.style:
        case Style.FIXED if _windows_ahead(state, policy) > 0:
            return _begin_window(state), ()
        case Style.FIXED:
            return replace(state, phase=Phase.WAITING), ()
        case Style.EXPLORER_DRIVEN:
            return replace(state, phase=Phase.ASKING), (AskForSync(),)
        case _:
            return replace(state, phase=Phase.EXPLORING), ()
