"""The trainer's half of the schedule: `step(state, event, policy) -> (state, actions)`.

Rules (DESIGN section 5), checked after every event:

* A version is due when t is not the last published one and
  - fixed, trainer_driven, fully_async: t mod T = 0;
  - explorer_driven: an explorer has asked, or has used up all the credit that there is on its version;
  - the run is ending.
* It is published at once, unless a step runs now (the weights are in motion), or, under `fixed`, an explorer has not
  applied the one before: `fixed` promises which version each explore step runs on, so no version may be skipped. Until
  then no further step starts (`may_train`).
* An explorer that joins gets the last published version before its first credit.
* Credit. With B groups a step, t steps done and O groups granted and not trained, the next group granted would be
  trained at step (tB + O) div B + 1. Made with version v, its staleness would be (tB + O) div B - v; so it is granted
  while tB + O < (v + 1 + max_staleness) B and O < max_queued_groups. Credit goes to the explorer with the fewest open
  groups (granted, not received), so that who returns groups faster gets more. Each group takes a task, so no more is
  granted than there are tasks left.
* No explorer holds credit that it cannot use soon, for others would lack it: one more explore step than it may have in
  flight. Under `fixed` it is what its window needs, from boundary to boundary, and not a group more: it would be kept
  through the wait for a version that needs the others' groups. For the same reason `fixed` leaves staleness to the
  windows: what they make too much is dropped.
* No batch is taken for step s while a group is in flight that was begun on a version below s - max_staleness: it would be
  too stale for the step after s. So slow groups are waited for, not lost: what is trained is what was generated, long
  or short.
* fixed: when everybody who is not given up stands at a boundary on the published version, all that they made is here,
  and it is less than a step takes (an explorer is gone, or groups were lost), as many as are needed make another window
  on it. Who is away for a moment is waited for: its own groups are what the step lacks.

* fixed and reproducible: the version of a step is the same whichever run epoch made it. So an explorer that is ahead of a
  trainer that restarted lacks nothing until the trainer has passed it; and no step starts before the published version is
  applied, also by who is away: no version may be lost that a window is still to be made on.

An illegal event raises `IllegalEvent` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from common.sync.actions import AnswerSync, Deliver, Publish, RepeatWindow, TrainerAction
from common.sync.credit import grant
from common.sync.events import (
    ExplorerFinished,
    ExplorerGivenUp,
    ExplorerJoined,
    ExplorerLeft,
    ExplorerWaits,
    GroupsDropped,
    GroupsReceived,
    OldestInFlight,
    RunEnding,
    SyncRequested,
    TasksCounted,
    TrainerEvent,
    TrainStepDone,
    TrainStepStarted,
    WeightsDelivered,
)
from common.sync.explorer_views import ExplorerView
from common.sync.policy import Style, SyncPolicy
from common.sync.trainer_state import IllegalEvent, TrainerSyncState, explorer_view, with_published, with_view

OwnEvent = TrainStepStarted | TrainStepDone | RunEnding | TasksCounted
ExplorerEvent = (
    ExplorerLeft
    | ExplorerGivenUp
    | ExplorerFinished
    | ExplorerWaits
    | OldestInFlight
    | GroupsReceived
    | GroupsDropped
    | WeightsDelivered
    | SyncRequested
)

_FREES_NOTHING = TrainStepStarted | GroupsReceived | WeightsDelivered | SyncRequested | OldestInFlight | ExplorerJoined
"""After these nobody else can be given credit than the explorer that they touch."""


def step(
    state: TrainerSyncState, event: TrainerEvent, policy: SyncPolicy
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    """Takes the event in, then does whatever has become due."""
    tasks_before = state.tasks_left
    state, actions = _take_in(state, event, policy)
    state, published = _publish_what_is_due(state, policy)
    # Everybody has all that is due before the event; so where it touches one explorer alone, only that one is looked at.
    everybody = state.explorers.keys()
    touched: tuple[str, ...] = () if isinstance(event, OwnEvent) else (event.explorer,)
    more_tasks = tasks_before is not None and (state.tasks_left is None or state.tasks_left > tasks_before)
    state, delivered = _deliver_to_newcomers(state, policy, everybody if published else touched)
    state, repeated = _repeat_windows(state, policy)
    frees_nothing = (
        isinstance(event, _FREES_NOTHING)
        or (isinstance(event, TasksCounted) and not more_tasks)
        or (isinstance(event, ExplorerWaits) and event.returned == 0)
    )
    state, granted = grant(state, policy, touched if frees_nothing and not repeated else everybody)
    state = _settle_finished(state, everybody if state.tasks_left != tasks_before else touched)
    return state, (*actions, *published, *delivered, *repeated, *granted)


def _settle_finished(state: TrainerSyncState, names: Iterable[str]) -> TrainerSyncState:
    """Who has finished goes on when tasks come back: those that were lost with a trainer, or an explorer."""
    for name in names:
        view = state.explorers[name]
        has_all = view.finished_at is not None and view.finished_at >= view.granted
        finished = has_all and state.tasks_left in {None, 0}
        if finished != view.finished:
            state = with_view(state, name, replace(view, finished=finished))
    return state


def is_due(state: TrainerSyncState, policy: SyncPolicy) -> bool:
    """Whether the present weights should be published, now or as soon as nothing holds them back."""
    if state.step == state.published:
        return False
    if state.ending or state.published is None:
        return True
    if policy.style is Style.EXPLORER_DRIVEN:
        tally = state.explorers.tally
        return tally.asking > 0 or (policy.max_staleness is not None and tally.out_of_credit > 0)
    return policy.is_publication(state.step)


def may_train(state: TrainerSyncState, policy: SyncPolicy) -> bool:
    """Whether the next step may start: nothing that is due waits to be published."""
    if policy.reproducible and not state.ending and _is_anyone_behind(state, policy):
        return False
    return not state.training and not is_due(state, policy)


def too_slow_for(state: TrainerSyncState, policy: SyncPolicy, step: int) -> tuple[str, ...]:
    """The explorers with groups in flight that would be too stale for the step after this one (from 1)."""
    return tuple(_too_slow_for(state, policy, step))


def waits_for_slow(state: TrainerSyncState, policy: SyncPolicy, step: int) -> bool:
    """Whether there are any."""
    return any(True for _ in _too_slow_for(state, policy, step))


def _too_slow_for(state: TrainerSyncState, policy: SyncPolicy, step: int) -> Iterator[str]:
    if policy.max_staleness is None or not policy.waits_for_slow:
        return
    oldest_usable = step - policy.max_staleness
    for name, view in state.explorers.items():
        if view.takes_part and view.open > 0 and view.oldest is not None and view.oldest < oldest_usable:
            yield name


def behind(state: TrainerSyncState, policy: SyncPolicy) -> tuple[str, ...]:
    """The explorers that take part and have not applied the last published version; reproducible: who is away, too."""
    if state.published is None:
        return ()
    waits_for_all = policy.reproducible and not state.ending
    return tuple(
        name
        for name, view in state.explorers.items()
        if (view.takes_part or (waits_for_all and not view.finished)) and _lacks(view, state.published, policy)
    )


def nothing_comes(state: TrainerSyncState) -> bool:
    """Whether everybody has said that it is finished, those aside who are given up."""
    tally = state.explorers.tally
    return tally.finished > 0 and tally.done_with == len(state.explorers)


def _is_anyone_behind(state: TrainerSyncState, policy: SyncPolicy) -> bool:
    return bool(behind(state, policy)) if policy.reproducible else state.behind > 0


def _take_in(
    state: TrainerSyncState, event: TrainerEvent, policy: SyncPolicy
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    match event:
        case TrainStepStarted(groups):
            return _start_step(state, groups), ()
        case TrainStepDone():
            if not state.training:
                raise IllegalEvent("a step ended that had not started")
            return replace(state, step=state.step + 1, training=False, in_step=0), ()
        case RunEnding():
            return replace(state, ending=True), ()
        case ExplorerJoined():
            return _join(state, event, policy)
        case TasksCounted(left) if left == state.tasks_left:
            return state, ()
        case TasksCounted(left):
            return _settle_finished(replace(state, tasks_left=left), state.explorers.keys()), ()
        case _:
            return _take_in_of_known(state, event, explorer_view(state, event.explorer), policy)


def _take_in_of_known(
    state: TrainerSyncState, event: ExplorerEvent, view: ExplorerView, policy: SyncPolicy
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    name = event.explorer
    match event:
        case ExplorerGivenUp() | ExplorerFinished() | ExplorerWaits() | OldestInFlight():
            return with_view(state, name, _told(view, event)), ()
        case ExplorerLeft():
            # Its RequestSync is a call of its own, which a broken stream does not end.
            return with_view(state, name, replace(view, connected=False, target=None)), ()
        case GroupsReceived():
            return with_view(state, name, replace(view, received=view.received + event.count)), ()
        case GroupsDropped():
            return with_view(state, name, _consume(name, view, event.count)), ()
        case WeightsDelivered():
            return _delivered(state, name, view, event.step, policy)
        case SyncRequested():
            if state.step == state.published == view.applied:
                return state, (AnswerSync(name, newer=False, step=state.step),)
            return with_view(state, name, replace(view, asking=True)), ()


def _told(
    view: ExplorerView, event: ExplorerGivenUp | ExplorerFinished | ExplorerWaits | OldestInFlight
) -> ExplorerView:
    match event:
        case ExplorerGivenUp():
            return replace(view, given_up=not view.connected)
        case ExplorerFinished(_, started):
            return replace(view, finished_at=started)
        case OldestInFlight(_, version):
            return replace(view, oldest=version)
        case ExplorerWaits(_, version, started, returned):
            # The word that the next version is applied comes by another way, and may have come first.
            need = started if version == view.applied else view.need
            return replace(view, waits=event, need=need, granted=view.granted - returned)


def _join(
    state: TrainerSyncState, event: ExplorerJoined, policy: SyncPolicy
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    if not event.gone <= event.received:
        raise IllegalEvent(f"{event.explorer}: {event.gone} groups trained, {event.received} received")
    before = state.explorers.get(event.explorer)
    asking = before is not None and before.asking
    newest = event.applied is not None and event.applied == state.step == state.published
    actions: tuple[TrainerAction, ...] = ()
    if asking and newest and event.applied is not None:
        actions = (AnswerSync(event.explorer, newer=True, step=event.applied),)
    # The word that it has applied its first version may be lost with a stream.
    first = state.published if state.published is not None else state.step
    unknown = ExplorerView(need=_need_of_unknown(event, state.step, policy), window=first)
    known = before if before is not None else unknown
    if event.applied is not None:
        known = _with_version(known, event.applied, policy)
    view = ExplorerView(
        applied=event.applied,
        owed=state.published is None or _lacks(event, state.published, policy),
        asking=asking and not newest,
        granted=max(event.started, event.received),
        received=event.received,
        # The groups of the running step are gone from the queue already, and not trained yet.
        gone=max(event.gone, known.gone),
        window=known.window,
        need=known.need,
    )
    return with_view(state, event.explorer, view), actions


def _need_of_unknown(event: ExplorerJoined, step: int, policy: SyncPolicy) -> int:
    """The ordinal at which its window ends, at most; what it does not need it gives back.

    A new explorer of a new run is at the start of its first window. Any other may be anywhere, and what it gets may be for
    the window after.
    """
    windows = 2 if event.started or step else 1
    explore_steps = policy.offset + windows * policy.explorer_interval
    return event.started + explore_steps * policy.groups_per_explore_step


def _start_step(state: TrainerSyncState, groups: tuple[tuple[str, int], ...]) -> TrainerSyncState:
    if state.training:
        raise IllegalEvent("a step started while another runs")
    for name, count in groups:
        state = with_view(state, name, _consume(name, explorer_view(state, name), count))
    return replace(state, training=True, in_step=sum(count for _, count in groups))


def _consume(name: str, view: ExplorerView, count: int) -> ExplorerView:
    if view.gone + count > view.received:
        raise IllegalEvent(f"{count} groups of {name} consumed, {view.received - view.gone} were there")
    return replace(view, gone=view.gone + count)


def _delivered(
    state: TrainerSyncState, name: str, view: ExplorerView, version: int, policy: SyncPolicy
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    if view.applied is not None and version < view.applied:
        raise IllegalEvent(f"{name} went back from version {view.applied} to {version}")
    target = None if view.target is not None and view.target <= version else view.target
    applied = replace(_with_version(view, version, policy), applied=version, target=target)
    state = with_view(state, name, replace(applied, asking=view.asking and target is not None))
    if view.asking and target is None:
        return state, (AnswerSync(name, newer=True, step=version),)
    return state, ()


def _with_version(view: ExplorerView, version: int, policy: SyncPolicy) -> ExplorerView:
    """fixed: it may make as many windows more as it can have come through, some of them perhaps unseen."""
    interval = policy.trainer_interval
    windows = 0 if view.window is None else max(0, version // interval - view.window // interval)
    more = windows * policy.explorer_interval * policy.groups_per_explore_step
    return replace(view, window=version, need=view.need + more)


def _wants_newer(view: ExplorerView, policy: SyncPolicy) -> bool:
    """explorer_driven: it asks, or it has used up all the credit that `max_staleness` leaves on its version."""
    used_up = policy.max_staleness is not None and view.applied is not None and view.open == 0
    return view.connected and (view.asking or (used_up and not view.finished))


def _publish_what_is_due(
    state: TrainerSyncState, policy: SyncPolicy
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    if state.training or not is_due(state, policy):
        return state, ()
    if policy.style is Style.FIXED and _is_anyone_behind(state, policy):
        return state, ()
    receivers = tuple(
        name
        for name, view in state.explorers.items()
        if view.connected
        and _lacks(view, state.step, policy)
        and (_wants_newer(view, policy) or state.ending or policy.style is not Style.EXPLORER_DRIVEN)
    )
    for name in receivers:
        state = with_view(state, name, replace(state.explorers[name], target=state.step, owed=False))
    return with_published(state, state.step), (Publish(state.step, receivers),)


def _lacks(explorer: ExplorerView | ExplorerJoined, version: int, policy: SyncPolicy) -> bool:
    """Whether it is to get this version of the present run epoch."""
    if policy.reproducible and explorer.applied is not None:
        return explorer.applied < version
    return explorer.applied != version


def _deliver_to_newcomers(
    state: TrainerSyncState, policy: SyncPolicy, names: Iterable[str]
) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    """To those of `names` that came without the published version, or that ask and have less."""
    published = state.published
    if published is None:
        return state, ()
    actions: list[TrainerAction] = []
    for name in names:
        view = state.explorers[name]
        lacking = _lacks(view, published, policy) and (view.owed or _wants_newer(view, policy))
        if view.connected and view.target is None and lacking:
            state = with_view(state, name, replace(view, target=published, owed=False))
            actions.append(Deliver(published, name))
    return state, tuple(actions)


def _repeat_windows(state: TrainerSyncState, policy: SyncPolicy) -> tuple[TrainerSyncState, tuple[TrainerAction, ...]]:
    """fixed: has as many explorers make another window as it takes to fill the next step, those that made least first."""
    if policy.style is not Style.FIXED or not policy.repeats_windows or state.tasks_left == 0:
        return state, ()
    if state.training or state.ending or state.published is None or is_due(state, policy):
        return state, ()
    tally = state.explorers.tally
    lacking = policy.groups_per_train_step - tally.here
    if lacking <= 0 or tally.standing < len(state.explorers) - tally.done_with:
        return state, ()
    parties = {name: view for name, view in state.explorers.items() if not view.finished and not view.given_up}
    if not parties or not all(_stands(view, state.published) for view in parties.values()):
        return state, ()
    window = policy.explorer_interval * policy.groups_per_explore_step
    fewest_first = sorted(parties, key=lambda name: (parties[name].received, name))
    actions: list[TrainerAction] = []
    for name in fewest_first[: -(-lacking // window)]:
        view = parties[name]
        need = max(view.need, view.received + window)
        state = with_view(state, name, replace(view, waits=None, need=need))
        actions.append(RepeatWindow(name, state.published or 0))
    return state, tuple(actions)


def _stands(view: ExplorerView, published: int) -> bool:
    """fixed: it waits at a boundary on this version, all that it made is here, and no credit is on its way, or on its way back."""
    return view.takes_part and view.stands and view.applied == published and view.open <= 0
