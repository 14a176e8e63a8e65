"""What happens to the two machines. Time and identity come in as data."""

from __future__ import annotations

from dataclasses import dataclass

# --- to the trainer's machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExplorerJoined:
    """A stream was opened: the explorer said hello."""

    explorer: str
    applied: int | None
    """The step that it runs on, if that version is of the trainer's present run epoch."""
    started: int
    """Groups that it has started in this run."""
    received: int
    """Of these, the groups that the trainer has received."""
    gone: int
    """Of these, the groups that the trainer has trained or dropped."""


@dataclass(frozen=True, slots=True)
class ExplorerLeft:
    """The stream broke, or the explorer is gone."""

    explorer: str


@dataclass(frozen=True, slots=True)
class ExplorerGivenUp:
    """It was away for too long: nobody waits for it any more, until it joins again."""

    explorer: str


@dataclass(frozen=True, slots=True)
class ExplorerFinished:
    """It said that nothing more comes: no task is left."""

    explorer: str
    started: int
    """Groups that it has started in this run. If it was given more meanwhile, it goes on."""


@dataclass(frozen=True, slots=True)
class ExplorerWaits:
    """fixed: it stands at a boundary, with nothing in flight, and waits for a newer version."""

    explorer: str
    step: int
    """Of the version that it runs on."""
    started: int
    """Groups that it has started in this run."""
    returned: int
    """Groups granted and not started, which it gives back."""


@dataclass(frozen=True, slots=True)
class OldestInFlight:
    """What it has in flight was begun on this version or later ones, and so will be what it begins from here on."""

    explorer: str
    step: int | None
    """None: what it has in flight cannot come before something else happens; it is not to be waited for."""


@dataclass(frozen=True, slots=True)
class TasksCounted:
    """So many tasks can be given out from here on; each grant of a group takes one."""

    left: int | None
    """None: endless."""


@dataclass(frozen=True, slots=True)
class GroupsReceived:
    """Groups arrived that were not there before."""

    explorer: str
    count: int


@dataclass(frozen=True, slots=True)
class GroupsDropped:
    """Groups left the queue untrained: too stale, or of lost weights."""

    explorer: str
    count: int


@dataclass(frozen=True, slots=True)
class TrainStepStarted:
    """A batch was taken: groups by explorer leave the queue."""

    groups: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TrainStepDone:
    """The weights are those of the next version."""


@dataclass(frozen=True, slots=True)
class WeightsDelivered:
    """An explorer said that this version is applied there."""

    explorer: str
    step: int


@dataclass(frozen=True, slots=True)
class SyncRequested:
    """explorer_driven: an explorer at its boundary asks."""

    explorer: str


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The last step is done: the final weights go to everybody, whatever the interval."""


TrainerEvent = (
    ExplorerJoined
    | ExplorerLeft
    | ExplorerGivenUp
    | ExplorerFinished
    | ExplorerWaits
    | OldestInFlight
    | TasksCounted
    | GroupsReceived
    | GroupsDropped
    | TrainStepStarted
    | TrainStepDone
    | WeightsDelivered
    | SyncRequested
    | RunEnding
)


# --- to the explorer's machine --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """The trainer's leave: so many groups more, on a version at or above `min_step`."""

    groups: int
    min_step: int


@dataclass(frozen=True, slots=True)
class CreditRevoked:
    """The trainer is gone; what it granted is void until it is back."""


@dataclass(frozen=True, slots=True)
class WeightsStaged:
    """A version is complete and verified beside the live one."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class WeightsApplied:
    """The version is live."""

    epoch: int
    step: int
    window_lost: bool = False
    """fixed: a new trainer goes on from before an acknowledgement, and what was made for this version is forgotten."""


@dataclass(frozen=True, slots=True)
class WindowRepeated:
    """fixed: the trainer lacks groups; those of another window are to be made on this version."""

    step: int


@dataclass(frozen=True, slots=True)
class NothingNewer:
    """explorer_driven: the trainer's answer."""


@dataclass(frozen=True, slots=True)
class GroupFinished:
    """A group of this explore step is spooled."""

    explore_step: int


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """No task is left, until there is credit again."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Start nothing more."""


ExplorerEvent = (
    CreditGranted
    | CreditRevoked
    | WeightsStaged
    | WeightsApplied
    | WindowRepeated
    | NothingNewer
    | GroupFinished
    | TasksEnded
    | DrainRequested
)
