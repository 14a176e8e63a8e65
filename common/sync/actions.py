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
    """Raise an explorer's credit to an absolute limit."""

    explorer: str
    limit: int
    min_step: int


@dataclass(frozen=True, slots=True)
class AnswerSync:
    """Answer a RequestSync."""

    explorer: str
    newer: bool
    step: int


TrainerAction = Publish | Deliver | Grant | AnswerSync


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
class ExploreStepEnded:
    """All groups of this explore step are spooled."""

    explore_step: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is made and spooled: say so on the stream."""


ExplorerAction = StartGroups | ApplyWeights | AskForSync | ExploreStepEnded | Finish
