"""All explorers as the trainer's schedule sees them: a value that is cheap to change, with counts that are kept with it.

The machines are pure: every event makes a new state. With ten thousand explorers a copied dictionary an event would be most of a run;
here a change copies one bucket and the list of buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.sync.events import ExplorerWaits

BUCKET = 64


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
    """fixed: step of the version that was applied last, of any stream; before the first, of the first that it can have applied."""
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
class Tally:
    """Sums over all explorers."""

    held: int = 0
    """Groups granted or received, and neither gone nor in a running step."""
    here: int = 0
    """Groups received and not gone."""
    finished: int = 0
    """Explorers that have finished."""
    done_with: int = 0
    """Explorers that have finished, or are given up."""
    asking: int = 0
    """Connected ones that wait for the answer to a RequestSync."""
    out_of_credit: int = 0
    """Connected ones that have a version, no group open, and have not finished."""
    standing: int = 0
    """fixed: those that take part, wait at a boundary, and have no group open."""

    def changed(self, before: ExplorerView | None, after: ExplorerView) -> Tally:
        """The sums with one view in another's place."""
        old = _one(before) if before is not None else Tally()
        new = _one(after)
        return Tally(
            self.held - old.held + new.held,
            self.here - old.here + new.here,
            self.finished - old.finished + new.finished,
            self.done_with - old.done_with + new.done_with,
            self.asking - old.asking + new.asking,
            self.out_of_credit - old.out_of_credit + new.out_of_credit,
            self.standing - old.standing + new.standing,
        )


def _one(view: ExplorerView) -> Tally:
    # What one that left had not started is lent to others.
    promised = max(view.granted, view.received) if view.takes_part else view.received
    return Tally(
        held=promised - view.gone,
        here=view.received - view.gone,
        finished=view.finished,
        done_with=view.finished or view.given_up,
        asking=view.connected and view.asking,
        out_of_credit=view.takes_part and view.applied is not None and view.open == 0,
        standing=view.takes_part and view.stands and view.open <= 0,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ExplorerViews(Mapping[str, ExplorerView]):
    """By name, in the order in which they first joined."""

    tally: Tally = field(default_factory=Tally)
    _places: Mapping[str, int] = field(default_factory=dict)
    _buckets: tuple[tuple[tuple[str, ExplorerView], ...], ...] = ()

    def __getitem__(self, name: str) -> ExplorerView:
        place = self._places[name]
        return self._buckets[place // BUCKET][place % BUCKET][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def put(self, name: str, view: ExplorerView) -> ExplorerViews:
        """With this view in place of the one before, if there was one."""
        place = self._places.get(name)
        tally = self.tally.changed(self[name] if place is not None else None, view)
        if place is None:
            return self._append(name, view, tally)
        number, within = divmod(place, BUCKET)
        bucket = self._buckets[number]
        bucket = (*bucket[:within], (name, view), *bucket[within + 1 :])
        return replace(self, tally=tally, _buckets=(*self._buckets[:number], bucket, *self._buckets[number + 1 :]))

    def _append(self, name: str, view: ExplorerView, tally: Tally) -> ExplorerViews:
        places = {**self._places, name: len(self._places)}
        if len(self._places) % BUCKET == 0:
            return ExplorerViews(tally, places, (*self._buckets, ((name, view),)))
        return ExplorerViews(tally, places, (*self._buckets[:-1], (*self._buckets[-1], (name, view))))
