"""Where the loop gets its batches: from explorers, or from a file of examples."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from common.changes import Changes
from common.config.root import TandemConfig
from common.experience.received import ExperienceText, ReceivedGroup
from common.status import StatusBoard
from common.sync import trainer_machine
from common.sync.events import GroupsDropped
from protos.tandem.v1 import trainer_pb2
from trainer_service.buffer.assemble import assemble
from trainer_service.buffer.examples import ExampleBuffer
from trainer_service.buffer.queue import GroupQueue
from trainer_service.engine.base import TrainBatch
from trainer_service.sync_driver import SyncDriver

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One step's worth of experiences."""

    batch: TrainBatch
    groups: list[ReceivedGroup] = field(default_factory=list)
    """Where they come from; empty for examples."""
    wait_seconds: float = 0.0
    """How long it took to get them."""
    previews: tuple[ExperienceText, ...] = ()

    @property
    def groups_by_explorer(self) -> tuple[tuple[str, int], ...]:
        """How many groups each explorer gave."""
        return tuple(sorted(Counter(group.explorer_id for group in self.groups).items()))


class BatchSource(Protocol):
    """Gives samples until there are no more."""

    async def next(self, step: int) -> Sample | None:
        """What step number `step` (from 1) trains on; None when no data is left or the run is stopped."""

    def trained(self, sample: Sample, step: int, *, applied: bool) -> None:
        """This step is done; `applied`: whether it changed the weights."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, as JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint's state."""

    def __len__(self) -> int:
        """Groups that wait here."""


class ExplorerSource:
    """Samples what explorers sent."""

    def __init__(
        self,
        config: TandemConfig,
        queue: GroupQueue,
        sync: SyncDriver,
        status: StatusBoard[int],
        changes: Changes,
        stopping: Callable[[], bool],
    ) -> None:
        self._config = config
        self._queue = queue
        self._sync = sync
        self._status = status
        self._changes = changes
        self._stopping = stopping
        # Logprobs are compared on the logits that were sampled from; greedy sampling reports untempered ones.
        self._temperature = config.explorer.sampling.temperature or 1.0

    async def next(self, step: int) -> Sample | None:
        """Waits for a full batch; at the data's end gives what is left, as configured."""
        began = time.monotonic()
        wanted = self._config.trainer.batch_size
        while True:
            self._drop_unusable(step)
            enough = len(self._queue) >= wanted and not self._too_slow(step)
            if enough or self._stopping() or self._nothing_comes():
                break
            await self._wait(step, wanted)
        if self._stopping():
            return None
        whole = len(self._queue) >= wanted
        if not whole and not (self._config.trainer.train_last_partial_batch and len(self._queue)):
            return None
        groups = self._queue.take(wanted)
        batch = await asyncio.to_thread(assemble, groups, self._temperature)
        texts = tuple(text for group in groups for text in group.texts)[: self._config.trainer.preview]
        return Sample(batch, groups, time.monotonic() - began, texts)

    def trained(self, sample: Sample, step: int, *, applied: bool) -> None:
        """The groups leave their explorers' accounts."""
        self._queue.trained(sample.groups, step, applied=applied)

    def state(self) -> dict[str, Any]:
        """The accounts, the lineage, who holds which tasks, and how far the ledger is."""
        return {
            "accounts": self._queue.state(),
            "lineage": self._queue.lineage.state(),
            "tasks": self._queue.tasks.state(),
            "ledger": self._queue.ledger.position,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The accounts and the tasks; the lineage was given to the queue."""
        self._queue.restore(state["accounts"])
        self._queue.tasks.restore(state["tasks"])

    def __len__(self) -> int:
        return len(self._queue)

    async def _wait(self, step: int, wanted: int) -> None:
        have, too_slow, paused = len(self._queue), self._too_slow(step), self._is_paused()

        def something_changed() -> bool:
            seen = len(self._queue), self._too_slow(step), self._is_paused()
            return seen != (have, too_slow, paused) or self._stopping() or self._nothing_comes()

        # A pause is the loop's to show: this samples ahead meanwhile.
        if paused:
            pass
        elif not any(view.connected for view in self._sync.state.explorers.values()):
            self._status.enter(trainer_pb2.TRAINER_STATE_WAITING_FOR_EXPLORERS, "none is connected")
        elif not self._sync.state.training:
            self._status.enter(
                trainer_pb2.TRAINER_STATE_WAITING_FOR_EXPERIENCES, f"{have} of {wanted} groups for step {step} are here"
            )
        # While none is there, the fleet's watch ends the run after `trainer.peer_timeout`.
        waiting_for = f"{wanted} groups for step {step}, {have} are here"
        if have >= wanted:
            waiting_for = f"groups of {', '.join(too_slow)} that would be too stale after step {step}"
        async with self._status.waiting(waiting_for, None if paused else self._config.trainer.experience_timeout):
            await self._changes.until(something_changed)

    def _drop_unusable(self, step: int) -> None:
        for group, reason in self._queue.drop_unusable(step):
            log.warning(
                "group_dropped",
                reason=reason,
                explorer=group.explorer_id,
                ordinal=group.ordinal,
                made_at=group.oldest_version,
                made_in_epoch=group.run_epoch,
                step=step,
            )
            self._sync.feed(GroupsDropped(group.explorer_id, 1))

    def _is_paused(self) -> bool:
        return self._status.state == trainer_pb2.TRAINER_STATE_PAUSED

    def _too_slow(self, step: int) -> tuple[str, ...]:
        return trainer_machine.too_slow_for(self._sync.state, self._sync.policy, step)

    def _nothing_comes(self) -> bool:
        return not self._queue.tasks.missing and trainer_machine.nothing_comes(self._sync.state)


class ExampleSource:
    """Samples examples of a file, for supervised stages."""

    def __init__(self, buffer: ExampleBuffer, stopping: Callable[[], bool]) -> None:
        self._buffer = buffer
        self._stopping = stopping
        self._given: dict[int, dict[str, Any]] = {}
        self._state = buffer.state()

    async def next(self, step: int) -> Sample | None:  # noqa: ARG002 - every source is asked with it
        """The next batch of examples."""
        began = time.monotonic()
        if self._stopping():
            return None
        batch = await asyncio.to_thread(next, self._buffer, None)
        if batch is None:
            return None
        sample = Sample(batch, wait_seconds=time.monotonic() - began)
        self._given[id(sample)] = self._buffer.state()
        return sample

    def trained(self, sample: Sample, step: int, *, applied: bool) -> None:  # noqa: ARG002 - every source is told
        """The cursor moves past the sample; one that was given and not trained comes again after a resume."""
        self._state = self._given.pop(id(sample))

    def state(self) -> dict[str, Any]:
        """The cursor."""
        return {"examples": self._state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on at the cursor."""
        self._buffer.restore(state["examples"])
        self._state = self._buffer.state()

    def __len__(self) -> int:
        return 0
