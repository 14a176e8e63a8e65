"""Deals the run's tasks out to its explorers; see `common.sync.task_pool` for the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from common.errors import CheckpointInvalid, ProtocolViolation, RunMismatch
from common.sync.task_pool import TaskPool


class TaskDealer:
    """The tasks of a stage: which they are is known from the first explorer, and the same for all others."""

    def __init__(self) -> None:
        self.pool = TaskPool()
        self._order_hash = ""

    @property
    def left(self) -> int | None:
        """Tasks that can be dealt now; None: endless.

        0 before the first explorer has come, and after a restart while one that held tasks is missing: others may have been
        dealt more than the checkpoint knows.
        """
        return self.pool.left if self._order_hash and not self.missing else 0

    @property
    def missing(self) -> frozenset[str]:
        """Explorers that held tasks when the checkpoint was written, and are not back."""
        return self.pool.missing

    @property
    def is_exhausted(self) -> bool:
        """Whether every task was dealt, and has arrived."""
        return bool(self._order_hash) and not self.missing and self.pool.is_exhausted

    def meet(self, explorer: str, order_hash: str, total: int) -> None:
        """An explorer says which tasks it knows. Raises RunMismatch when they are not those of the run."""
        if self._order_hash and (order_hash, total) != (self._order_hash, self.pool.total or 0):
            raise RunMismatch(
                f"explorer {explorer} has another taskset, or another order of tasks: {order_hash} with {total or 'endless'} "
                f"tasks, and the run's is {self._order_hash} with {self.pool.total or 'endless'}"
            )
        self._order_hash = order_hash
        self.pool.total = total or None

    def rejoin(self, explorer: str, held: Collection[int]) -> None:
        """An explorer that was met is there, and holds these. Raises ProtocolViolation for what cannot be."""
        try:
            self.pool.rejoin(explorer, held)
        except ValueError as error:
            raise ProtocolViolation(f"explorer {explorer}: {error}") from error

    def give_up(self, explorer: str) -> int:
        """Nobody waits for it any more; returns how many of its tasks go to others."""
        return self.pool.give_up(explorer)

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, as JSON."""
        return {"order_hash": self._order_hash, "total": self.pool.total, "pool": self.pool.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As a checkpoint stored it. Raises CheckpointInvalid."""
        try:
            self._order_hash = str(state["order_hash"])
            self.pool = TaskPool(None if state["total"] is None else int(state["total"]))
            self.pool.restore(state["pool"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointInvalid(f"the tasks in the checkpoint are malformed: {error}") from error
