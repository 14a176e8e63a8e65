"""Drives the trainer's sync machine: events in, publications and credits out. Decides nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from common.changes import Changes
from common.errors import PeerUnavailable, RunMismatch
from common.status import StatusBoard
from common.sync import trainer_machine
from common.sync.actions import AnswerSync, Deliver, Grant, Publish, RepeatWindow, TrainerAction
from common.sync.events import ExplorerLeft, TrainerEvent
from common.sync.policy import SyncPolicy
from common.sync.trainer_state import begun_at
from common.weights.version import PolicyVersion
from protos.tandem.v1 import trainer_pb2
from trainer_service.engine.base import TrainEngine
from trainer_service.engine.worker import EngineWorker
from trainer_service.publish.publication import Publication, Published, Publisher

log = structlog.get_logger(__name__)


class Link(Protocol):
    """What the driver needs of a connected explorer."""

    def grant(self, count: int, min_step: int) -> None:
        """Sends credit for so many groups more."""

    def repeat_window(self, step: int) -> None:
        """Has it make another window on this version."""

    def deliver(self, publication: Publication) -> None:
        """Delivers the version, in place of one that waits to be delivered."""


class SyncDriver:
    """The schedule of one stage, at work."""

    def __init__(
        self,
        policy: SyncPolicy,
        publisher: Publisher,
        engine: TrainEngine,
        worker: EngineWorker,
        status: StatusBoard[int],
        changes: Changes,
        *,
        step: int,
        timeout: float,
        min_explorers: int,
        interrupted: Callable[[], bool],
    ) -> None:
        """`timeout` is in seconds, of every wait for an explorer; `interrupted` ends the waits of the loop early.

        No step starts while fewer than `min_explorers` are connected.
        """
        self.policy = policy
        self.state = begun_at(step, policy)
        self.links: dict[str, Link] = {}
        self.published: Published | None = None
        """The version that became ready last."""
        self._publisher = publisher
        self._engine = engine
        self._worker = worker
        self._status = status
        self._changes = changes
        self._timeout = timeout
        self._min_explorers = min_explorers
        self._interrupted = interrupted
        self._publication: Publication | None = None
        self._preparing: set[asyncio.Task[None]] = set()
        self._answers: dict[str, asyncio.Future[AnswerSync]] = {}

    def feed(self, event: TrainerEvent) -> None:
        """Takes one event to the machine, and starts what it orders. Publications are exported before any later step."""
        if isinstance(event, ExplorerLeft):
            self._break_off_request(event.explorer)
        self.state, actions = trainer_machine.step(self.state, event, self.policy)
        for action in actions:
            self._start(action)
        self._changes.notify()

    @property
    def connected(self) -> int:
        """Explorers whose stream is open."""
        return sum(view.connected for view in self.state.explorers.values())

    async def until_may_train(self) -> None:
        """Waits while too few explorers are there, or while a version that is due cannot be published yet."""
        await self._until_enough_explorers()

        def may_train() -> bool:
            return trainer_machine.may_train(self.state, self.policy) or self._interrupted()

        if not may_train():
            behind = ", ".join(trainer_machine.behind(self.state, self.policy)) or "an explorer"
            waiting_for = (
                f"{behind} to apply version {self.state.published} before version {self.state.step} is published"
            )
            async with self._status.waiting(waiting_for, self._timeout):
                await self._changes.until(may_train)
        self.raise_failure()

    async def _until_enough_explorers(self) -> None:
        def enough() -> bool:
            ended = trainer_machine.nothing_comes(self.state)
            return self.connected >= self._min_explorers or ended or self._interrupted()

        if not enough():
            reason = f"{self._min_explorers} explorers (trainer.min_explorers), {self.connected} connected"
            self._status.enter(trainer_pb2.TRAINER_STATE_WAITING_FOR_EXPLORERS, reason)
            # Bounded by the fleet's watch, which ends the run when too few are there for `trainer.peer_timeout`.
            async with self._status.waiting(reason, None):
                await self._changes.until(enough)

    async def until_delivered(self) -> None:
        """Waits until every explorer that takes part runs on the last published version, and nothing is due."""

        def delivered() -> bool:
            due = trainer_machine.is_due(self.state, self.policy)
            behind = [name for name, view in self.state.explorers.items() if view.target is not None and view.connected]
            return not due and not behind

        async with self._status.waiting(f"version {self.state.step} to be applied everywhere", self._timeout):
            await self._changes.until(lambda: delivered() or self._failed() is not None)
        self.raise_failure()

    async def request_sync(self, explorer: str, event: TrainerEvent) -> AnswerSync:
        """explorer_driven: feeds the request, and waits for the machine's answer."""
        answer = self._answers.setdefault(explorer, asyncio.get_running_loop().create_future())
        self.feed(event)
        async with self._status.waiting(f"the answer to {explorer}'s RequestSync", self._timeout):
            return await asyncio.shield(answer)

    def raise_failure(self) -> None:
        """Raises what the preparation of a publication failed with, if one did."""
        failed = self._failed()
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Drops what is in progress."""
        for task in self._preparing:
            task.cancel()

    def _break_off_request(self, explorer: str) -> None:
        """The machine forgets who asked when the stream breaks, so the explorer has to ask again."""
        answer = self._answers.pop(explorer, None)
        if answer is not None and not answer.done():
            answer.set_exception(PeerUnavailable(f"the stream of explorer {explorer} broke meanwhile; ask again"))
            answer.exception()  # whoever asked may be gone too

    def _failed(self) -> BaseException | None:
        ready = self._publication.ready if self._publication is not None else None
        return ready.exception() if ready is not None and ready.done() and not ready.cancelled() else None

    def _start(self, action: TrainerAction) -> None:
        match action:
            case Publish(step, explorers):
                publication = self._publish(step)
                for name in explorers:
                    self.links[name].deliver(publication)
            case Deliver(step, explorer):
                if self._publication is None:
                    raise RunMismatch(
                        f"explorer {explorer} does not have version {step}, and this trainer, which went on from a later step, has "
                        "it not either; a deterministic run cannot go on without it"
                    )
                self.links[explorer].deliver(self._publication)
            case Grant(explorer, count, min_step):
                self.links[explorer].grant(count, min_step)
            case RepeatWindow(explorer, step):
                log.warning("window_repeated", explorer=explorer, step=step, reason="the next step lacks groups")
                self.links[explorer].repeat_window(step)
            case AnswerSync(explorer):
                answer = self._answers.pop(explorer, None)
                if answer is not None and not answer.done():
                    answer.set_result(action)

    def _publish(self, step: int) -> Publication:
        loop = asyncio.get_running_loop()
        publication = Publication(step, loop.time(), loop.create_future())
        # Submitted here and now: the worker exports before any step that is submitted later.
        snapshot = self._worker.submit(self._engine.export_weights)
        task = asyncio.create_task(self._prepare(publication, snapshot))
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        self._publication = publication
        log.debug("publishing", step=step)
        return publication

    async def _prepare(self, publication: Publication, snapshot: asyncio.Future) -> None:  # type: ignore[type-arg]
        try:
            published = await self._publisher.prepare(publication.step, await snapshot)
        except asyncio.CancelledError:
            publication.ready.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it reaches the loop by raise_failure, and every delivery
            publication.ready.set_exception(error)
            self._changes.notify()
            return
        if self.published is None or published.version >= self.published.version:
            self.published = published
        publication.ready.set_result(published)
        self._changes.notify()


def published_version(driver: SyncDriver) -> PolicyVersion:
    """The version that was published last and is ready; (0, 0) before the first."""
    return driver.published.version if driver.published is not None else PolicyVersion(0, 0)
