"""Groups that were received and are not trained yet, with the accounts of the explorers that sent them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.experience.received import ReceivedBatch, ReceivedGroup
from common.sync.lineage import Lineage
from trainer_service.buffer.account import ExplorerAccount
from trainer_service.buffer.task_dealer import TaskDealer
from trainer_service.ledger import Ledger, NoLedger

TOO_STALE = "too_stale"
LOST_LINEAGE = "lost_lineage"
TASK_DONE_BEFORE = "task_done_before"
"""Its task was done by another group, or is another explorer's by now."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What a batch added."""

    groups: int
    """Groups of the batch, if it was new; else 0."""
    already_gone: int
    """Of these, groups that were trained before the trainer restarted, or are refused."""
    refused: tuple[ReceivedGroup, ...] = ()
    """Groups that are dropped and counted: their tasks were done before."""


class GroupQueue:
    """Takes batches in exactly once, and gives groups out oldest version first."""

    def __init__(
        self,
        max_staleness: int | None,
        lineage: Lineage,
        ledger: Ledger | None = None,
        *,
        reproducible: bool = False,
    ) -> None:
        """`reproducible`: steps that were lost are made again to the bit, so what was made on their weights is as good."""
        self.accounts: dict[str, ExplorerAccount] = {}
        self.dropped: Counter[str] = Counter()
        """Groups dropped, by reason."""
        self.lineage = lineage
        self.tasks = TaskDealer()
        self.ledger = ledger if ledger is not None else NoLedger()
        self._max_staleness = max_staleness
        self._reproducible = reproducible
        self._groups: list[ReceivedGroup] = []

    def __len__(self) -> int:
        return len(self._groups)

    def account(self, explorer_id: str) -> ExplorerAccount:
        """The explorer's account; a new one when it is unknown."""
        return self.accounts.setdefault(explorer_id, ExplorerAccount(explorer_id))

    def take_in(self, batch: ReceivedBatch) -> Intake:
        """Adds a batch. Raises ProtocolViolation when batches are missing before it."""
        account = self.account(batch.explorer_id)
        before = account.received_groups
        fresh = account.take_in(batch)
        wanted = [group for group in fresh if self.tasks.pool.arrive(group.explorer_id, group.task)]
        refused = tuple(group for group in fresh if group not in wanted) if len(wanted) < len(fresh) else ()
        if refused:
            self.ledger.dropped(TASK_DONE_BEFORE, refused, self._batch_sizes(refused))
        for group in refused:
            self.dropped[TASK_DONE_BEFORE] += 1
            account.let_go(group)
        self._groups.extend(wanted)
        groups = account.received_groups - before
        return Intake(groups, groups - len(wanted), refused)

    def drop_unusable(self, step: int) -> list[tuple[ReceivedGroup, str]]:
        """Drops and counts what must not be trained by this step (the number of the step, from 1), with the reason.

        Staleness is judged here, when a group's turn comes, not when it arrived.
        """
        kept: list[ReceivedGroup] = []
        dropped: list[tuple[ReceivedGroup, str]] = []
        for group in self._groups:
            reason = self._why_unusable(group, step)
            if reason is None:
                kept.append(group)
            else:
                dropped.append((group, reason))
        self._groups = kept
        for reason in dict.fromkeys(reason for _, reason in dropped):
            groups = [group for group, its_reason in dropped if its_reason == reason]
            self.ledger.dropped(reason, groups, self._batch_sizes(groups), step)
        for group, reason in dropped:
            self.dropped[reason] += 1
            self._let_go(group)
        return dropped

    def take(self, count: int) -> list[ReceivedGroup]:
        """Removes up to `count` groups, oldest version first; their accounts stay as they are until `trained`."""
        self._groups.sort(key=lambda group: (group.oldest_version, group.ordinal, group.explorer_id))
        taken, self._groups = self._groups[:count], self._groups[count:]
        return taken

    def put_back(self, groups: list[ReceivedGroup]) -> None:
        """Returns groups that were taken and not trained."""
        self._groups.extend(groups)

    def trained(self, groups: list[ReceivedGroup], step: int, *, applied: bool) -> None:
        """This step, which used these groups, is done; `applied`: whether it changed the weights."""
        self.ledger.step(step, groups, self._batch_sizes(groups), applied=applied)
        for group in groups:
            self._let_go(group)

    def skip_to(self, explorer_id: str, acknowledged_through: int, acknowledged_groups: int) -> int:
        """See `ExplorerAccount.skip_to`."""
        account = self.account(explorer_id)
        before = account.frontier
        lost = account.skip_to(acknowledged_through, acknowledged_groups)
        if account.frontier > before:
            self.ledger.skipped(explorer_id, acknowledged_through, acknowledged_groups, lost)
        return lost

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores of the accounts, as JSON."""
        return {name: account.state() for name, account in self.accounts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The accounts as a checkpoint stored them. Raises CheckpointInvalid."""
        self.accounts = {name: ExplorerAccount.restore(name, account) for name, account in state.items()}

    def _batch_sizes(self, groups: Sequence[ReceivedGroup]) -> list[int]:
        return [self.accounts[group.explorer_id].batch_size(group.sequence) for group in groups]

    def _let_go(self, group: ReceivedGroup) -> None:
        self.account(group.explorer_id).let_go(group)
        self.tasks.pool.finish(group.explorer_id, group.task)

    def _why_unusable(self, group: ReceivedGroup, step: int) -> str | None:
        if not self._reproducible and not self.lineage.holds(group.run_epoch, group.newest_version):
            return LOST_LINEAGE
        if self._max_staleness is not None and step - 1 - group.oldest_version > self._max_staleness:
            return TOO_STALE
        return None
