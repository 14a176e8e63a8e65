"""All explorers of a stage: dials them, watches that there are some, and ends with them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import structlog

from common.changes import Changes
from common.config.root import TandemConfig
from common.errors import PeerError, PeerUnavailable, StaleEpoch, TandemError, WaitTimedOut
from common.monitor.monitor import Monitor
from common.status import StatusBoard
from common.sync.events import ExplorerGivenUp, RunEnding, TasksCounted
from common.tasks import task_scope
from protos.tandem.v1 import trainer_pb2
from trainer_service.buffer.queue import GroupQueue
from trainer_service.explorer_link import ExplorerLink
from trainer_service.publish.publication import Delivery, Publication, Publisher
from trainer_service.sync_driver import SyncDriver

log = structlog.get_logger(__name__)


class Fleet:
    """The explorers of one stage."""

    def __init__(
        self,
        config: TandemConfig,
        *,
        run_epoch: int,
        fingerprints: tuple[str, str],
        queue: GroupQueue,
        sync: SyncDriver,
        publisher: Publisher,
        status: StatusBoard[int],
        changes: Changes,
        monitor: Monitor,
        step: Callable[[], int],
    ) -> None:
        self.links: list[ExplorerLink] = []
        self._config = config
        self._run_epoch = run_epoch
        self._fingerprints = fingerprints
        self._queue = queue
        self._sync = sync
        self._publisher = publisher
        self._status = status
        self._changes = changes
        self._monitor = monitor
        self._step = step
        self._tasks: asyncio.TaskGroup | None = None
        self._is_ending = False
        self._running: dict[ExplorerLink, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}
        """Why, by address, of those that registered and are left out."""
        self._sync_metrics: dict[str, float] = {}
        self._started = time.monotonic()

    async def run(self) -> None:
        """Keeps the links until it is cancelled. Raises what makes an explorer unfit, or that none is left."""
        async with task_scope() as tasks:
            self._tasks = tasks
            try:
                for explorer in self._config.explorers:
                    self.dial(explorer.address)
                tasks.create_task(self._give_up_who_stays_away())
                await self._watch()
            finally:
                self._tasks = None  # who registers from here on comes too late

    async def close(self) -> None:
        """Closes all channels."""
        for link in self.links:
            await link.close()

    def dial(self, address: str, explorer_id: str | None = None) -> None:
        """Adds an explorer. An address that is dialled already stays as it is; an explorer that moved is followed."""
        if self._tasks is None or any(link.address == address for link in self.links):
            return
        for link in [link for link in self.links if explorer_id is not None and link.explorer_id == explorer_id]:
            log.info("explorer_moved", explorer=explorer_id, before=link.address, now=address)
            self.links.remove(link)
            self._running.pop(link).cancel()
            self._tasks.create_task(link.close())
        link = ExplorerLink(
            address,
            self._config,
            run_epoch=self._run_epoch,
            fingerprints=self._fingerprints,
            queue=self._queue,
            sync=self._sync,
            publisher=self._publisher,
            status=self._status,
            observer=self,
        )
        self.links.append(link)
        is_listed = any(explorer.address == address for explorer in self._config.explorers)
        self._running[link] = self._tasks.create_task(link.run() if is_listed else self._run_registered(link))

    async def _run_registered(self, link: ExplorerLink) -> None:
        """One that nobody listed, and that turns out unfit, is told so and left out: the others' run goes on."""
        try:
            await link.run()
        except StaleEpoch:
            raise  # a successor has the explorers
        except PeerError as error:
            log.warning("explorer_refused", explorer=link.explorer_id, address=link.address, error=error.message)
            self._refused[link.address] = error.message
            reason = f"the trainer refused: {error.message}"
            await self._each([link], "stop", lambda one: one.stop(reason, finished=False))
            self.links.remove(link)
            del self._running[link]
            await link.close()

    def connected(self) -> list[ExplorerLink]:
        """The links whose stream is open."""
        return [link for link in self.links if link.connected]

    def acknowledge_durable(self, state: Mapping[str, Any]) -> None:
        """A state is durable: every explorer may forget what its frontier covers."""
        for name, account in state["source"]["accounts"].items():
            self._queue.account(name).durable_through = account["frontier"]
        self._acknowledge()

    def acknowledge_trained(self) -> None:
        """Where the run keeps no checkpoints on the way, a finished step is all the durability there is."""
        for account in self._queue.accounts.values():
            account.durable_through = account.frontier
        self._acknowledge()

    def explorer_metrics(self, explorer_id: str, values: dict[str, float]) -> None:
        """Logs an explorer's metrics with the trainer's step."""
        self._monitor.log(self._step(), time.time(), explorer_id, values)

    def joined(self, link: ExplorerLink) -> None:
        """One that was away when the others were drained would never come to take the final weights."""
        if self._is_ending and self._tasks is not None:
            self._tasks.create_task(self._each([link], "drain", ExplorerLink.drain))

    def tasks_changed(self) -> None:
        """Counts what is left of the tasks, and says so when nothing is."""
        tasks = self._queue.tasks
        if tasks.left != self._sync.state.tasks_left:
            self._sync.feed(TasksCounted(tasks.left))
        if tasks.is_exhausted:
            for link in self.connected():
                link.end_tasks()

    def delivered(self, explorer_id: str, publication: Publication, delivery: Delivery, seconds: float) -> None:
        """Keeps the times of the newest delivery, for the step's metrics."""
        self._sync_metrics = {
            "time/sync_weight": seconds,
            "time/sync_receive": delivery.receive_seconds,
            "time/sync_apply": delivery.apply_seconds,
            "sync/sent_bytes": float(delivery.sent_bytes),
        }
        log.debug("weights_applied", explorer=explorer_id, step=publication.step, seconds=round(seconds, 4))

    def metrics(self) -> dict[str, float]:
        """Of synchronization and of the queue, for the step's metrics."""
        applied = [link.applied.step for link in self.connected()]
        dropped = {f"buffer/dropped_{reason}": float(count) for reason, count in self._queue.dropped.items()}
        return {
            **self._sync_metrics,
            **dropped,
            "sync/published_version": float(self._sync.state.published or 0),
            "sync/applied_version": float(min(applied, default=0)),
            "buffer/queued_groups": float(len(self._queue)),
            "explorers/connected": float(len(applied)),
        }

    async def publish_final(self) -> None:
        """Drains the explorers, brings the final weights to them, evaluates, and tells them that the run is over."""
        self._is_ending = True
        links = self.connected()
        self._status.enter(trainer_pb2.TRAINER_STATE_SYNCHRONIZING, "the final weights")
        await self._each(links, "drain", ExplorerLink.drain)
        self._sync.feed(RunEnding())
        await self._sync.until_delivered()
        if links and self._config.explorer.evaluation.taskset is not None:
            await self._each(links[:1], "evaluate", self._evaluate)

    async def stop(self, reason: str, *, finished: bool) -> None:
        """Tells every explorer that the run has ended; when it failed, also those that turned out unfit for it."""

        async def stop(link: ExplorerLink) -> None:
            await link.stop(reason, finished=finished)

        links = self.connected() if finished else [link for link in self.links if link.met]
        await self._each(links, "stop", stop)

    async def _evaluate(self, link: ExplorerLink) -> None:
        response = await link.evaluate()
        self._monitor.log(self._step(), time.time(), link.explorer_id, dict(response.metrics))

    async def _each(
        self, links: list[ExplorerLink], doing: str, call: Callable[[ExplorerLink], Awaitable[None]]
    ) -> None:
        """Calls all at once; an explorer that is gone by now holds up nobody, and is logged."""
        results = await asyncio.gather(*(call(link) for link in links), return_exceptions=True)
        for link, result in zip(links, results, strict=True):
            if isinstance(result, TandemError):
                log.warning("explorer_call_failed", doing=doing, explorer=link.explorer_id, error=result.message)
            elif isinstance(result, BaseException):
                raise result

    def _acknowledge(self) -> None:
        for link in self.connected():
            through = self._queue.account(link.explorer_id).durable_through
            if through:
                link.acknowledge(through)

    async def _watch(self) -> None:
        """Raises PeerUnavailable when too few explorers were there for `trainer.peer_timeout`."""
        timeout, least = self._config.trainer.peer_timeout, self._config.trainer.min_explorers
        wanted = "an explorer" if least == 1 else f"{least} explorers (trainer.min_explorers)"

        def enough() -> bool:
            return len(self.connected()) >= least

        while True:
            try:
                async with self._status.waiting(wanted, timeout):
                    await self._changes.until(enough)
            except WaitTimedOut:
                causes = "; ".join(self._causes()) or "none is configured (`explorers`), and none has registered"
                there = f"{len(self.connected())} of {wanted}" if self.connected() else "no explorer"
                raise PeerUnavailable(f"{there} for {timeout:g} seconds: {causes}") from None
            await self._changes.until(lambda: not enough())

    async def _give_up_who_stays_away(self) -> None:
        """The tasks of an explorer that is away for `trainer.explorer_timeout` go to the others, and they go on without it."""
        timeout = self._config.trainer.explorer_timeout
        loop = asyncio.get_running_loop()
        since: dict[str, float] = {}
        while True:
            absent = self._absent()
            since = {name: since.get(name, loop.time()) for name in absent}
            for name in [name for name in absent if since[name] + timeout <= loop.time()]:
                self._give_up(name, timeout)
                del since[name]
            pause = min(since.values()) + timeout - loop.time() if since else None

            def differs(known: frozenset[str] = self._absent()) -> bool:
                return self._absent() != known

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changes.until(differs)

    def _absent(self) -> frozenset[str]:
        """Who was there once, and is neither there nor given up."""
        views = self._sync.state.explorers.items()
        left = {name for name, view in views if not view.connected and not view.given_up}
        return frozenset(left) | self._queue.tasks.missing

    def _give_up(self, name: str, timeout: float) -> None:
        tasks = self._queue.tasks.give_up(name)
        log.warning("explorer_given_up", explorer=name, tasks=tasks, away=timeout)
        if name in self._sync.state.explorers:
            self._sync.feed(ExplorerGivenUp(name))
        self.tasks_changed()

    def _causes(self) -> Iterator[str]:
        for address, reason in self._refused.items():
            yield f"{address} was refused: {reason}"
        for link in self.links:
            if link.last_error is not None:
                yield f"{link.address}: {link.last_error.message}"
            if link.peer_failure is not None and link.peer_failure is not link.last_error:
                yield f"before that: {link.peer_failure.message}"
