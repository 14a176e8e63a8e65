"""What takes time in a pair that runs without services."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.sync.explorer_machine import Version


class Kind(StrEnum):
    """What takes time."""

    ROLLOUT = "rollout"
    """An explorer makes a group."""
    GROUP = "group"
    """A group is on its way to the trainer."""
    FINISHED = "finished"
    """The word that nothing more comes is on its way to the trainer."""
    CREDIT = "credit"
    """A credit is on its way to an explorer."""
    REPEAT = "repeat"
    """The word to make another window on the same version is on its way to an explorer."""
    TASKS_ENDED = "tasks_ended"
    """The word that no task is left is on its way to an explorer."""
    WAITS = "waits"
    """The word that an explorer stands at its boundary is on its way to the trainer."""
    PUSH = "push"
    """A version is on its way to an explorer."""
    SWAP = "swap"
    """An explorer swaps a version in."""
    OUTCOME = "outcome"
    """The word that a version is live is on its way to the trainer."""
    OLDEST = "oldest"
    """The word of the oldest version in flight is on its way to the trainer."""
    ASK = "ask"
    """A RequestSync is on its way to the trainer."""
    ANSWER = "answer"
    """The answer to it is on its way to the explorer."""
    TRAIN = "train"
    """A trainer step runs."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group of rollouts."""

    explorer: int
    ordinal: int
    explore_step: int
    oldest: Version
    """The version that was live when it began."""
    newest: Version
    """The version that was live when it ended."""
    task: int = 0
    """Position of its task in the order of tasks."""
    place: int = -1
    """In its explorer's spool, from 0."""

    @property
    def turn(self) -> tuple[int, int, int]:
        """Oldest version first."""
        return (self.oldest[1], self.ordinal, self.explorer)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that has begun."""

    kind: Kind
    explorer: int = -1
    """Whose; -1: the trainer's own."""
    incarnation: int = 0
    """Of the stream, or of the process, that it belongs to: what belongs to an earlier one comes to nothing."""
    version: Version = (0, 0)
    limit: int = 0
    """Groups started, of a word that an explorer waits or has finished."""
    tasks: tuple[int, ...] = ()
    """That a credit comes with, one for each group; that an explorer which waits gives back."""
    newer: bool = False
    """Of an answer."""
    group: Group | None = None

    @property
    def channel(self) -> tuple[object, ...]:
        """Happenings of one channel keep their order; rollouts have one each."""
        match self.kind:
            case Kind.ROLLOUT:
                return (self.kind, self.explorer, self.incarnation, self.group and self.group.ordinal)
            case Kind.GROUP | Kind.FINISHED | Kind.WAITS | Kind.OLDEST:
                return ("stream", self.explorer)
            case Kind.CREDIT | Kind.REPEAT | Kind.TASKS_ENDED:
                return ("orders", self.explorer)
            case _:
                return (self.kind, self.explorer)
