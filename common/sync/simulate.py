"""A run in virtual time: the services' own state machines, driven by durations. No clock, and no chance but the caller's.

What it says of a schedule is exact for the durations it is given. A deadlock that it finds is one: nothing is in progress any
more, the run is not over, and neither machine can move.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from common.sync import explorer_machine, trainer_machine
from common.sync.happening import Group, Happening, Kind
from common.sync.pair import Pair
from common.sync.policy import SyncPolicy

MAX_HAPPENINGS = 5_000_000
"""Some minutes of computing."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An explorer's stream is cut, and opened again."""

    explorer: int
    at: float
    """Virtual seconds."""
    seconds: float
    """Until it joins again."""


@dataclass(frozen=True, slots=True)
class Durations:
    """In virtual seconds."""

    rollout: float | Callable[[Group], float] = 1.0
    """Of one group."""
    train: float | Callable[[], float] = 1.0
    """Of one trainer step."""
    push: float | Callable[[], float] = 0.0
    """From a publication until the version is at an explorer."""
    swap: float | Callable[[], float] = 0.0
    """Until a version that is there is live."""
    latency: float = 0.0
    """Of every message, one way."""
    evaluation: float = 0.0
    """Of one evaluation: no version is swapped in meanwhile."""
    evaluation_interval: int | None = None
    """Explore steps between evaluations; None: there are none."""
    slots: int | None = None
    """Groups that one explorer makes at once; others wait for a place. None: all."""


class Lane(StrEnum):
    """Whose bar it is."""

    TRAINER = "trainer"
    EXPLORER = "explorer"


@dataclass(frozen=True, slots=True)
class Span:
    """A bar of the timeline: a trainer step, or an explore step of one explorer."""

    lane: Lane
    explorer: int
    """-1: the trainer."""
    step: int
    """Trainer step or explore step, from 1."""
    version: int
    """Step of the version that it begins with."""
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """An arrow of the timeline: a version, from its publication until it is live at an explorer."""

    explorer: int
    version: int
    published: float
    live: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What became of a run."""

    finished: bool
    """All steps were made, or all data was used."""
    deadlock: str | None
    """What each side waits for, for ever; None also where the simulation was cut short."""
    steps: int
    """Trainer steps done."""
    seconds: float
    """Virtual, until the last trainer step was done."""
    trainer_idle: float
    """Share of that time without a step."""
    explorer_idle: float
    """Share of that time with no group in flight; mean over the explorers."""
    staleness: Mapping[int, int]
    """Groups trained, by staleness in steps."""
    dropped: Mapping[str, int]
    """Groups that were made and not trained, by reason."""
    max_queued_groups: int
    versions: tuple[tuple[int, ...], ...]
    """For each explorer, the version (its step) that each of its explore steps began with."""
    spans: tuple[Span, ...]
    deliveries: tuple[Delivery, ...]

    @property
    def groups_per_second(self) -> float:
        """Groups trained a second."""
        return sum(self.staleness.values()) / self.seconds if self.seconds else 0.0

    @property
    def mean_staleness(self) -> float:
        """Over the groups trained, in steps."""
        groups = sum(self.staleness.values())
        return sum(steps * count for steps, count in self.staleness.items()) / groups if groups else 0.0


@dataclass(slots=True)
class _Lane:
    """One explorer's rollouts."""

    running: int = 0
    waiting: deque[Happening] = field(default_factory=deque)
    """For a place."""
    busy_since: float = 0.0
    busy_seconds: float = 0.0
    evaluating_until: float = 0.0
    open_steps: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    """Explore steps in flight: version, start, groups in flight."""
    versions: dict[int, int] = field(default_factory=dict)


def _seconds(duration: float | Callable[[], float]) -> float:
    return duration if isinstance(duration, int | float) else duration()


class Simulation:
    """One run."""

    def __init__(
        self,
        policy: SyncPolicy,
        explorers: int,
        *,
        durations: Durations,
        total_steps: int | None,
        tasks: int | None,
        outages: tuple[Outage, ...] = (),
    ) -> None:
        """As `simulate`."""
        if total_steps is None and tasks is None:
            raise ValueError("a run without an end: give `total_steps` or `tasks`")
        self.now = 0.0
        self.pair = Pair(policy, explorers, self._post, total_steps=total_steps, tasks=tasks)
        self._durations = durations
        self._agenda: list[tuple[float, int, Happening | Callable[[], None]]] = []
        self._sequence = 0
        self._lanes = [_Lane() for _ in range(explorers)]
        self._step_began = 0.0
        self._last_step_ended = 0.0
        self._trainer_busy = 0.0
        self._staleness: Counter[int] = Counter()
        self._max_queued = 0
        self._published_at: dict[int, float] = {}
        self._spans: list[Span] = []
        self._deliveries: list[Delivery] = []
        for index in range(explorers):
            self._at(0.0, self._joining(index))
        for outage in outages:
            self._at(outage.at, self._cutting(outage.explorer))
            self._at(outage.at + outage.seconds, self._joining(outage.explorer))

    def run(self, max_happenings: int = MAX_HAPPENINGS) -> SimulationResult:
        """Runs to the end, to a deadlock, or for so many happenings."""
        pair = self.pair
        happened = 0
        while self._agenda and happened < max_happenings:
            self.now, _, happening = heapq.heappop(self._agenda)
            happened += 1
            if isinstance(happening, Happening):
                self._happen(happening)
            else:
                happening()
            pair.drop_stale()
            if not pair.ending and pair.can_train():
                pair.start_training()
            if self._agenda and self._agenda[0][0] <= self.now:
                continue
            if not pair.ending and pair.is_over():
                pair.begin_end()
            if pair.ending and pair.end():
                return self._result(finished=True, deadlock=None)
        return self._result(finished=False, deadlock=None if self._agenda else self._why_nothing_moves())

    # --- beginnings and ends ------------------------------------------------------------------------------------------

    def _post(self, happening: Happening) -> None:
        durations = self._durations
        match happening.kind:
            case Kind.ROLLOUT:
                self._begin_rollout(happening)
            case Kind.TRAIN:
                self._begin_step(happening)
            case Kind.PUSH:
                self._published_at.setdefault(happening.version[1], self.now)
                self._at(self.now + _seconds(durations.push) + durations.latency, happening)
            case Kind.SWAP:
                free = max(self.now, self._lanes[happening.explorer].evaluating_until)
                self._at(free + _seconds(durations.swap), happening)
            case _:
                self._at(self.now + durations.latency, happening)

    def _happen(self, happening: Happening) -> None:
        match happening.kind:
            case Kind.ROLLOUT if happening.group is not None:
                self._end_rollout(happening.group)
            case Kind.TRAIN:
                self._end_step()
            case Kind.SWAP:
                version = happening.version[1]
                published = self._published_at.get(version, self.now)
                self._deliveries.append(Delivery(happening.explorer, version, published, self.now))
            case _:
                pass
        self.pair.happen(happening)
        self._max_queued = max(self._max_queued, len(self.pair.queue))

    def _begin_rollout(self, happening: Happening) -> None:
        group = happening.group
        if group is None:
            raise ValueError("a rollout without a group")
        lane = self._lanes[group.explorer]
        lane.versions.setdefault(group.explore_step, group.oldest[1])
        version, start, running = lane.open_steps.get(group.explore_step, (group.oldest[1], self.now, 0))
        lane.open_steps[group.explore_step] = (version, start, running + 1)
        if self._durations.slots is not None and lane.running >= self._durations.slots:
            lane.waiting.append(happening)
            return
        if lane.running == 0:
            lane.busy_since = self.now
        lane.running += 1
        self._at(self.now + self._seconds_of(group), happening)

    def _end_rollout(self, group: Group) -> None:
        lane = self._lanes[group.explorer]
        lane.running -= 1
        if lane.waiting:
            following = lane.waiting.popleft()
            if following.group is not None:
                lane.running += 1
                self._at(self.now + self._seconds_of(following.group), following)
        if lane.running == 0:
            lane.busy_seconds += self.now - lane.busy_since
        version, start, running = lane.open_steps.pop(group.explore_step)
        if running > 1:
            lane.open_steps[group.explore_step] = (version, start, running - 1)
            return
        self._spans.append(Span(Lane.EXPLORER, group.explorer, group.explore_step, version, start, self.now))
        interval = self._durations.evaluation_interval
        if interval is not None and group.explore_step % interval == 0:
            lane.evaluating_until = self.now + self._durations.evaluation

    def _begin_step(self, happening: Happening) -> None:
        self._step_began = self.now
        step = self.pair.trainer.step
        self._staleness.update(step - group.oldest[1] for group in self.pair.batch)
        self._at(self.now + _seconds(self._durations.train), happening)

    def _end_step(self) -> None:
        step = self.pair.trainer.step
        self._spans.append(Span(Lane.TRAINER, -1, step + 1, step, self._step_began, self.now))
        self._trainer_busy += self.now - self._step_began
        self._last_step_ended = self.now

    def _seconds_of(self, group: Group) -> float:
        rollout = self._durations.rollout
        return rollout if isinstance(rollout, int | float) else rollout(group)

    def _at(self, time: float, happening: Happening | Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (time, self._sequence, happening))

    def _joining(self, index: int) -> Callable[[], None]:
        return lambda: self.pair.join(index)

    def _cutting(self, index: int) -> Callable[[], None]:
        return lambda: self.pair.cut(index)

    # --- the outcome ----------------------------------------------------------------------------------------------------

    def _why_nothing_moves(self) -> str:
        pair = self.pair
        waits = Counter(
            explorer_machine.waiting_for(explorer.state, pair.policy) or "nothing: it has finished"
            for explorer in pair.explorers
        )
        everyone = len(pair.explorers) == 1
        sides = [f"the trainer at step {pair.trainer.step} waits for {self._trainer_waits_for()}"]
        for words, count in waits.most_common(3):
            who = "the explorer waits" if everyone else f"{count} of {len(pair.explorers)} explorers wait"
            sides.append(f"{who} for {words}")
        return "; ".join(sides)

    def _trainer_waits_for(self) -> str:
        pair = self.pair
        if pair.ending:
            return "the final weights to be applied everywhere"
        if not trainer_machine.may_train(pair.trainer, pair.policy):
            return (
                f"{len(trainer_machine.behind(pair.trainer, pair.policy))} of {len(pair.explorers)} explorers to apply version "
                f"{pair.trainer.published} before it publishes version {pair.trainer.step}"
            )
        return f"{pair.policy.groups_per_train_step} groups, {len(pair.queue)} are there"

    def _result(self, *, finished: bool, deadlock: str | None) -> SimulationResult:
        seconds = self._last_step_ended
        busy = 0.0
        for lane in self._lanes:
            still = max(0.0, seconds - lane.busy_since) if lane.running else 0.0
            busy += min(seconds, lane.busy_seconds + still)
        share = busy / (seconds * len(self._lanes)) if seconds and self._lanes else 0.0
        return SimulationResult(
            finished=finished,
            deadlock=deadlock,
            steps=self.pair.trainer.step,
            seconds=seconds,
            trainer_idle=1.0 - self._trainer_busy / seconds if seconds else 1.0,
            explorer_idle=1.0 - share,
            staleness=MappingProxyType(dict(sorted(self._staleness.items()))),
            dropped=MappingProxyType(dict(self.pair.dropped)),
            max_queued_groups=self._max_queued,
            versions=tuple(tuple(lane.versions[step] for step in sorted(lane.versions)) for lane in self._lanes),
            spans=tuple(self._spans),
            deliveries=tuple(self._deliveries),
        )


def simulate(
    policy: SyncPolicy,
    *,
    explorers: int = 1,
    durations: Durations | None = None,
    total_steps: int | None = None,
    tasks: int | None = None,
    outages: tuple[Outage, ...] = (),
    max_happenings: int = MAX_HAPPENINGS,
) -> SimulationResult:
    """Runs the schedule to the end, to a deadlock, or for `max_happenings`.

    `tasks` are those of each explorer; None: endless. Raises ValueError where neither that nor `total_steps` ends the run.
    """
    simulation = Simulation(
        policy,
        explorers,
        durations=durations or Durations(),
        total_steps=total_steps,
        tasks=tasks,
        outages=outages,
    )
    return simulation.run(max_happenings)


CHECKED_HAPPENINGS = 700
"""For each timing: together 0.2 s at most, which is what a start may cost."""
CHECKED_EXPLORERS = 64
"""With more, so many happenings see little of a run."""
CHECKED_TIMINGS = (
    Durations(rollout=1.0, train=1.0, push=0.25, latency=0.01),
    Durations(rollout=8.0, train=1.0, push=0.25, latency=0.01),
    Durations(rollout=1.0, train=8.0, push=2.0, latency=0.01),
)
"""Balanced, and each side much faster than the other."""


@functools.lru_cache(maxsize=16)  # a start asks several times
def find_deadlock(
    policy: SyncPolicy, explorers: int, total_steps: int | None = None, tasks: int | None = None
) -> str | None:
    """What both sides would wait for, for ever, in a run without faults; None where nothing of the kind was found.

    What it finds is certain for these timings; of a long run it sees the beginning.
    """
    if explorers > CHECKED_EXPLORERS:
        return None
    alone = replace(policy, repeats_windows=False)
    endless = total_steps if total_steps is not None or tasks is not None else CHECKED_HAPPENINGS
    for durations in CHECKED_TIMINGS:
        result = simulate(
            alone,
            explorers=explorers,
            durations=durations,
            total_steps=endless,
            tasks=tasks,
            max_happenings=CHECKED_HAPPENINGS,
        )
        if result.deadlock is not None:
            return result.deadlock
    return None
