"""Batches as a trainer holds them, small enough to follow by hand."""

from collections.abc import Sequence

from common.experience.columns import Columns
from common.experience.received import ReceivedBatch, ReceivedGroup
from tests.support.experience_samples import experience


def received_group(
    ordinal: int,
    sequence: int,
    *,
    explorer: str = "e",
    oldest: int = 0,
    newest: int | None = None,
    run_epoch: int = 1,
) -> ReceivedGroup:
    versions = {"oldest": oldest, "newest": oldest if newest is None else newest}
    return ReceivedGroup(
        task_id=f"task-{ordinal}",
        ordinal=ordinal,
        explorer_id=explorer,
        sequence=sequence,
        explore_step=1,
        run_epoch=run_epoch,
        # Distinct for each group of each explorer, as the trainer deals them.
        task=1000 * (ord(explorer[0]) - ord("a")) + ordinal,
        columns=Columns.from_experiences([experience([3, 4, 5], 1, **versions), experience([3, 6], 1, **versions)]),
    )


def received_batch(sequence: int, ordinals: Sequence[int], *, explorer: str = "e", **of_groups: int) -> ReceivedBatch:
    groups = tuple(received_group(ordinal, sequence, explorer=explorer, **of_groups) for ordinal in ordinals)
    return ReceivedBatch(explorer, sequence, groups)
