"""What of one explorer's stream has arrived, has been trained, and is durable.

Exactly once: a batch is taken in once, by its sequence number; a group leaves once, by its ordinal. The frontier is the
highest sequence number below which every group has left. A checkpoint stores the frontier and, beyond it, the groups that
have left already; everything else is still in the explorer's spool, which forgets a batch only after the frontier of a
durable checkpoint has passed it. After a restart the explorer replays from the stored frontier, and the groups that had
left are recognised by their ordinals. Only a trainer that goes on from an older checkpoint than the newest, or from none,
meets an explorer that has forgotten more than that (`skip_to`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.errors import CheckpointInvalid, ProtocolViolation
from common.experience.received import ReceivedBatch, ReceivedGroup


class ExplorerAccount:
    """The account of one explorer."""

    def __init__(self, explorer_id: str) -> None:
        self.explorer_id = explorer_id
        self.received_through = 0
        """Highest sequence number received without a gap."""
        self.frontier = 0
        """Highest sequence number below which every group was trained or dropped."""
        self.durable_through = 0
        """The frontier of the newest durable checkpoint: what is acknowledged."""
        self.received_groups = 0
        """Groups received in this run."""
        self.gone_groups = 0
        """Groups trained or dropped in this run."""
        self._groups_below_frontier = 0
        self._batch_sizes: dict[int, int] = {}
        self._present: dict[int, set[int]] = {}
        self._gone_beyond: dict[int, set[int]] = {}

    def batch_size(self, sequence: int) -> int:
        """Groups of a batch that was received, and of which some are still here."""
        return self._batch_sizes[sequence]

    def take_in(self, batch: ReceivedBatch) -> tuple[ReceivedGroup, ...]:
        """The groups of the next batch that have not left before. A repeated batch gives none.

        Raises ProtocolViolation when batches are missing in between.
        """
        if batch.sequence <= self.received_through:
            return ()
        if batch.sequence != self.received_through + 1:
            raise ProtocolViolation(
                f"{self.explorer_id}: batch {batch.sequence} came after {self.received_through}",
                expected=self.received_through + 1,
            )
        gone = self._gone_beyond.get(batch.sequence, set())
        fresh = tuple(group for group in batch.groups if group.ordinal not in gone)
        self.received_through = batch.sequence
        self.received_groups += len(batch.groups)
        self.gone_groups += len(batch.groups) - len(fresh)
        self._batch_sizes[batch.sequence] = len(batch.groups)
        self._present[batch.sequence] = {group.ordinal for group in fresh}
        self._advance()
        return fresh

    def skip_to(self, acknowledged_through: int, acknowledged_groups: int) -> int:
        """The explorer has forgotten what was acknowledged to it; returns the groups of these that we know nothing of.

        An acknowledgement beyond our frontier was given by an earlier trainer from a checkpoint that this one did not go
        on from. Those batches never come again, so they count as received and gone. Raises ProtocolViolation for numbers
        that cannot be.
        """
        if acknowledged_through <= self.frontier:
            return 0
        trained = sum(len(gone) for at, gone in self._gone_beyond.items() if at <= acknowledged_through)
        lost = acknowledged_groups - self._groups_below_frontier - trained
        if self.received_through != self.frontier or lost < 0:
            raise ProtocolViolation(
                f"{self.explorer_id}: {acknowledged_groups} groups are said to be acknowledged through batch "
                f"{acknowledged_through}; our frontier is {self.frontier} with {self._groups_below_frontier} groups, "
                f"{self.received_through} batches were received"
            )
        self.frontier = self.received_through = acknowledged_through
        self.received_groups = self.gone_groups = self._groups_below_frontier = acknowledged_groups
        self._gone_beyond = {at: gone for at, gone in self._gone_beyond.items() if at > acknowledged_through}
        return lost

    def let_go(self, group: ReceivedGroup) -> None:
        """The group was trained, or dropped and counted."""
        self._present[group.sequence].remove(group.ordinal)
        self._gone_beyond.setdefault(group.sequence, set()).add(group.ordinal)
        self.gone_groups += 1
        self._advance()

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, as JSON."""
        return {
            "frontier": self.frontier,
            "groups_below_frontier": self._groups_below_frontier,
            "gone_beyond": {str(sequence): sorted(ordinals) for sequence, ordinals in self._gone_beyond.items()},
        }

    @classmethod
    def restore(cls, explorer_id: str, state: Mapping[str, Any]) -> ExplorerAccount:
        """The account as a checkpoint stored it. Raises CheckpointInvalid."""
        account = cls(explorer_id)
        try:
            account.frontier = account.received_through = account.durable_through = int(state["frontier"])
            account._groups_below_frontier = int(state["groups_below_frontier"])
            account.received_groups = account.gone_groups = account._groups_below_frontier
            account._gone_beyond = {
                int(sequence): {int(ordinal) for ordinal in ordinals}
                for sequence, ordinals in state["gone_beyond"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointInvalid(f"the account of {explorer_id} in the checkpoint is malformed: {error}") from error
        return account

    def _advance(self) -> None:
        while (following := self.frontier + 1) in self._present and not self._present[following]:
            del self._present[following]
            self._gone_beyond.pop(following, None)
            self._groups_below_frontier += self._batch_sizes.pop(following)
            self.frontier = following
