"""Groups that are made and not spooled yet: in the order in which they ended, or by their ordinals."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from common.config.root import LimitsConfig
from common.experience.experience import ExperienceGroup
from explorer_service.batching import take_batch


class FinishedGroups:
    """Gives them out as batches. `in_order`: none before all groups with lower ordinals are spooled or have failed."""

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._groups: deque[ExperienceGroup] = deque()

    def add(self, group: ExperienceGroup) -> None:
        """A group is made."""
        self._groups.append(group)
        if self._in_order:
            self._groups = deque(sorted(self._groups, key=lambda one: one.ordinal))

    def ready(self, in_flight: Collection[int]) -> int:
        """How many may be spooled now; `in_flight` are the ordinals of all groups that are begun and not spooled."""
        if not self._in_order:
            return len(self._groups)
        made = [group.ordinal for group in self._groups]
        expected = sorted(in_flight)[: len(made)]
        return next(
            (place for place, pair in enumerate(zip(made, expected, strict=True)) if pair[0] != pair[1]), len(made)
        )

    def take(self, in_flight: Collection[int], max_groups: int, limits: LimitsConfig) -> list[ExperienceGroup]:
        """Removes the next batch, of those that are ready."""
        return take_batch(self._groups, min(max_groups, self.ready(in_flight)), limits)
