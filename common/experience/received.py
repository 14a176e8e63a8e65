"""Experiences on the receiving side: decoded, checked, and cut into groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.experience.columns import Columns


@dataclass(frozen=True, slots=True)
class ExperienceText:
    """What a person reads of one experience."""

    prompt: str
    """The prompt as text."""
    response: str
    """What the policy wrote."""


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedGroup:
    """One group as the trainer holds it."""

    task_id: str
    """Name of the task within its taskset."""
    ordinal: int
    """Position in its explorer's stream of groups, from 0; never reused in a run."""
    explorer_id: str
    """The explorer that made it."""
    sequence: int
    """Sequence number of the batch that it came in."""
    explore_step: int
    """The explore step that started it, from 1."""
    run_epoch: int
    """Run epoch of the weights that made it."""
    columns: Columns
    """The experiences of this group alone: views of the batch's bytes, which stay in memory as long as it does."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the workflow reported, averaged over the group."""
    texts: tuple[ExperienceText, ...] = ()
    """One an experience, or none at all."""
    failed_rollouts: int = 0
    """Rollouts that failed and are not in it."""
    task: int = 0
    """Position of its task in the run's order of tasks."""

    oldest_version: int = field(init=False)
    """Policy step of the oldest token in the group."""
    newest_version: int = field(init=False)
    """Policy step of the newest token in the group."""

    def __post_init__(self) -> None:
        """Kept, not computed: a queue asks each of its groups whenever something has changed."""
        # A group is small: Python's min of a list takes a quarter of the time of numpy's.
        object.__setattr__(self, "oldest_version", min(self.columns.oldest_versions.tolist()))
        object.__setattr__(self, "newest_version", max(self.columns.newest_versions.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedBatch:
    """One message of an explorer's stream."""

    explorer_id: str
    """The explorer that made it."""
    sequence: int
    """Position in its stream, from 1."""
    groups: tuple[ReceivedGroup, ...]
    """At least one."""
