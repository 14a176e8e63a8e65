"""What the machines want done. The drivers turn these into RPCs and engine calls."""

from __future__ import annotations

from dataclasses import dataclass

# --- of the trainer's machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publish:
    """Export the present weights as version `step`, and deliver it to `explorers`."""

    step: int
    explorers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver the version that was published last to one explorer."""

    step: int
    explorer: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Raise an explorer's credit."""

    explorer: str
    count: int
    """By so many groups, each with a task."""
    min_step: int


@dataclass(frozen=True, slots=True)
class RepeatWindow:
    """fixed: an explorer that stands at its boundary is to make another window on the version that it has."""

    explorer: str
    step: int


@dataclass(frozen=True, slots=True)
class AnswerSync:
    """Answer a RequestSync."""

    explorer: str
    newer: bool
    step: int


TrainerAction = Publish | Deliver | Grant | RepeatWindow | AnswerSync


# --- of the explorer's machine --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartGroups:
    """Start the groups with the ordinals from `first` on, `count` of them; they belong to `explore_step`."""

    explore_step: int
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class ApplyWeights:
    """Swap the staged version in."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class AskForSync:
    """explorer_driven: call RequestSync."""


@dataclass(frozen=True, slots=True)
class ReportWaiting:
    """fixed: tell the trainer that everything up to here is spooled, and that nothing comes before a newer version."""

    epoch: int
    """Of the live version."""
    step: int
    """Of the live version."""
    started: int
    returned: int
    """Groups that credit covered and that are not started: it goes back, for others."""


@dataclass(frozen=True, slots=True)
class ExploreStepEnded:
    """All groups of this explore step are spooled."""

    explore_step: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is made and spooled: say so on the stream."""


ExplorerAction = StartGroups | ApplyWeights | AskForSync | ReportWaiting | ExploreStepEnded | Finish
