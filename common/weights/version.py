"""The identity of one set of policy weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Equal when all three are equal; ordered by (run epoch, step) alone.

    Two versions with the same numbers and other hashes are neither equal nor before or after one another: somebody made
    different weights under one name.
    """

    run_epoch: int
    """Counts the trainer's starts of one run, from 1; 0: no weights were ever applied."""
    step: int
    """Trainer steps done when these weights were exported; 0: the initial weights."""
    manifest_hash: str = ""
    """`Manifest.manifest_hash`; empty for `NEVER_APPLIED`."""

    @property
    def order(self) -> tuple[int, int]:
        """What versions are ordered by."""
        return self.run_epoch, self.step

    def __lt__(self, other: PolicyVersion) -> bool:
        return self.order < other.order

    def __le__(self, other: PolicyVersion) -> bool:
        return self == other or self < other

    def __gt__(self, other: PolicyVersion) -> bool:
        return other < self

    def __ge__(self, other: PolicyVersion) -> bool:
        return other <= self


NEVER_APPLIED = PolicyVersion(0, 0)
"""An explorer's version before its first weights; lower than every real one."""
