"""The settings of the schedule. A constructor refuses what could never work, and says what would hang."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Style(StrEnum):
    """Who decides when weights move (DESIGN section 5)."""

    FIXED = "fixed"
    TRAINER_DRIVEN = "trainer_driven"
    EXPLORER_DRIVEN = "explorer_driven"
    FULLY_ASYNC = "fully_async"


class Method(StrEnum):
    """How weights move."""

    SHARDS = "shards"
    CHECKPOINT = "checkpoint"


class ImpossiblePolicy(ValueError):
    """Settings under which both sides would wait for each other for ever."""


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """The schedule of one stage."""

    style: Style = Style.FIXED
    trainer_interval: int = 1
    """T, in trainer steps."""
    explorer_interval: int = 1
    """M, in explore steps."""
    offset: int = 0
    """n, in explore steps."""
    groups_per_train_step: int = 1
    """Groups that one trainer step consumes."""
    groups_per_explore_step: int = 1
    """Groups that one explore step starts."""
    max_staleness: int | None = None
    """Steps; None = whatever the schedule gives."""
    max_inflight_batches: int = 1
    """fully_async: explore steps in flight."""
    max_queued_groups: int = 1024
    """Groups received and not trained."""
    waits_for_slow: bool = True
    """A step waits for groups in flight that would be too stale for the step after it. False: they are dropped later."""
    repeats_windows: bool = True
    """fixed: who stands at its boundary makes another window on the same version when the trainer lacks groups, as it does
    when an explorer is gone. False: to see whether a schedule gets along without that."""
    reproducible: bool = False
    """fixed, one explorer: every window is made on exactly its version, also after restarts. A version is known by its step
    alone: what is trained again after a restart comes out the same, so nothing that was made on it is ever given up."""

    def __post_init__(self) -> None:
        """Raises ImpossiblePolicy."""
        if self.reproducible and self.style is not Style.FIXED:
            raise ImpossiblePolicy(f"style {self.style.value} follows the clock: only fixed can be reproduced")

    def is_boundary(self, explore_step: int) -> bool:
        """Whether the explorer synchronizes after this explore step: e > n and (e - n) mod M = 0."""
        ahead = explore_step - self.offset
        return ahead > 0 and ahead % self.explorer_interval == 0

    def next_boundary(self, explore_step: int) -> int:
        """The first boundary at or after this explore step."""
        windows = -(-(explore_step - self.offset) // self.explorer_interval)
        return self.offset + max(1, windows) * self.explorer_interval

    def is_publication(self, step: int) -> bool:
        """Whether the trainer publishes this version without being asked: t mod T = 0."""
        return step % self.trainer_interval == 0
