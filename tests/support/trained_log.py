"""Which groups every step trained on, as seen where groups leave the queue."""

from collections import Counter

import pytest

from common.experience.received import ReceivedGroup
from trainer_service.buffer.queue import GroupQueue


class TrainedLog:
    """A list of steps, each the (explorer, ordinal, task) of its groups, one list for each trainer that was started."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lives: dict[int, list[list[tuple[str, int, str]]]] = {}
        self.dropped: list[tuple[int, int, str]] = []
        """(run epoch of the trainer, ordinal, reason)."""
        trained, drop = GroupQueue.trained, GroupQueue.drop_unusable

        def noting(queue: GroupQueue, groups: list[ReceivedGroup], step: int, *, applied: bool) -> None:
            steps = self.lives.setdefault(queue.lineage.epoch, [])
            steps.append([(group.explorer_id, group.ordinal, group.task_id) for group in groups])
            trained(queue, groups, step, applied=applied)

        def noting_drops(queue: GroupQueue, step: int) -> list[tuple[ReceivedGroup, str]]:
            dropped = drop(queue, step)
            self.dropped += [(queue.lineage.epoch, group.ordinal, reason) for group, reason in dropped]
            return dropped

        patch.setattr(GroupQueue, "trained", noting)
        patch.setattr(GroupQueue, "drop_unusable", noting_drops)

    def ordinals(self, epoch: int, steps: int | None = None) -> list[int]:
        """Of the groups that this trainer trained, in its first so many steps."""
        return [ordinal for step in self.lives.get(epoch, [])[:steps] for _, ordinal, _ in step]

    def tasks(self, epoch: int) -> Counter[str]:
        """How often it trained each task."""
        return Counter(task for step in self.lives[epoch] for _, _, task in step)
