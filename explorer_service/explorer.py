"""The explorer's loop: drives the sync machine with what happens, and does what it orders.

Groups run as tasks of the event loop; what they make goes to the spool, and from there to the trainer. Decides nothing
about the schedule itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import structlog

from common.changes import Changes
from common.config.root import TandemConfig
from common.errors import WorkflowFailed
from common.experience.experience import ExperienceGroup
from common.status import StatusBoard
from common.sync import explorer_machine
from common.sync.actions import (
    ApplyWeights,
    AskForSync,
    ExplorerAction,
    ExploreStepEnded,
    Finish,
    ReportWaiting,
    StartGroups,
)
from common.sync.events import (
    CreditRevoked,
    DrainRequested,
    ExplorerEvent,
    GroupFinished,
    NothingNewer,
    WeightsApplied,
)
from common.sync.explorer_machine import ExplorerSyncState
from common.sync.policy import SyncPolicy
from common.weights.version import NEVER_APPLIED, PolicyVersion
from common.wire.experiences import batch_to_wire
from explorer_service.batching import check_group
from explorer_service.evaluation import Evaluator
from explorer_service.experience_stream import ExperienceStream
from explorer_service.explore_metrics import ExploreMetrics
from explorer_service.finished_groups import FinishedGroups
from explorer_service.group_runner import GroupRunner
from explorer_service.progress import GroupPlan, Progress
from explorer_service.spool_thread import SpoolThread
from explorer_service.task_share import TaskShare
from explorer_service.tasksets import Taskset
from explorer_service.tasksets.order import TaskOrder
from explorer_service.weight_intake import WeightIntake

log = structlog.get_logger(__name__)


class Explorer:
    """One stage's exploring."""

    def __init__(
        self,
        *,
        config: TandemConfig,
        policy: SyncPolicy,
        runner: GroupRunner,
        taskset: Taskset,
        order: TaskOrder,
        share: TaskShare,
        progress: Progress,
        state: ExplorerSyncState,
        spool: SpoolThread,
        weights: WeightIntake,
        stream: ExperienceStream,
        evaluator: Evaluator,
        metrics: ExploreMetrics,
        status: StatusBoard[int],
        changes: Changes,
        ask_trainer: Callable[[], Awaitable[bool]],
    ) -> None:
        """`ask_trainer` calls RequestSync; True when a newer version was applied meanwhile."""
        self.state = state
        self._config = config
        self._policy = policy
        self._runner = runner
        self._taskset = taskset
        self._order = order
        self._share = share
        self._progress = progress
        self._spool = spool
        self._weights = weights
        self._stream = stream
        self._evaluator = evaluator
        self._metrics = metrics
        self._status = status
        self._changes = changes
        self._ask_trainer = ask_trainer
        self._events: deque[ExplorerEvent] = deque()
        self._finished_groups = FinishedGroups(in_order=policy.reproducible)
        self._spooling: list[ExperienceGroup] = []
        self._begun: dict[int, int] = {}
        self._begun_at: dict[int, float] = {}
        self._spool_is_full = False
        self._failed_in_a_row = 0
        self._interrupted = list(progress.in_flight.values())
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._ended = False

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Spools what groups make, until it is cancelled; an error in any of its tasks ends the group of tasks."""
        self._tasks = tasks
        self._metrics.start(self.state.explore_step)
        if self._weights.live != NEVER_APPLIED:
            # Kept from before a restart.
            self._take_up(self._weights.live, window_lost=False)
        try:
            while True:
                await self._changes.until(lambda: self._finished_groups.ready(self._progress.in_flight) > 0)
                await self._until_spool_has_room()
                await self._spool_finished()
        finally:
            # The group of tasks ends: what a stream or a push still feeds must start nothing in it.
            self._ended = True

    def feed(self, event: ExplorerEvent) -> None:
        """Takes an event to the machine, and starts what it orders; nothing once the explorer ends."""
        if self._ended:
            return
        if isinstance(event, CreditRevoked):
            self._share.revoke()
        self._events.append(event)
        if len(self._events) > 1:
            return  # fed by an action of an event that is being worked on: its turn comes below
        try:
            while self._events:
                self.state, actions = explorer_machine.step(self.state, self._events[0], self._policy)
                for action in actions:
                    self._start(action)
                self._events.popleft()
        finally:
            self._events.clear()
            self._changes.notify()

    @property
    def groups_running(self) -> int:
        """Groups in flight."""
        return len(self._progress.in_flight)

    @property
    def tasks_in_work(self) -> list[int]:
        """Positions of the tasks of all groups that are begun and not spooled."""
        plans = self._progress.in_flight.values()
        return [plan.position for plan in plans] + [group.task for group in self._spooling]

    def oldest_in_flight(self) -> int | None:
        """Step of the oldest version that a group in flight was begun on, else of the live one.

        None when the trainer must not wait for it: before the first version, and while the spool is full.
        """
        if self.state.version == (0, 0) or self._spool_is_full:
            return None
        return min(self._begun.values(), default=self.state.version[1])

    async def drain(self, timeout: float) -> int:
        """Starts nothing more; returns the newest sequence number when everything in flight is spooled.

        Groups of an earlier incarnation that wait for the first weights are not in flight: the next one makes them.
        """
        self.feed(DrainRequested())
        async with self._status.waiting("the groups in flight to finish", timeout):
            await self._changes.until(lambda: not self.state.in_flight or bool(self._interrupted))
        return self._spool.counters.last_sequence

    def cancel(self) -> None:
        """Ends whatever is still in flight; it is made again by the next incarnation."""
        self._ended = True
        for task in self._running:
            task.cancel()

    def _start(self, action: ExplorerAction) -> None:
        match action:
            case StartGroups(explore_step, count, first):
                self._start_groups(explore_step, count, first)
            case ApplyWeights(epoch, step):
                self._spawn(self._apply(epoch, step))
            case AskForSync():
                self._spawn(self._ask())
            case ReportWaiting():
                self._stream.report_waiting(action, self._share.give_back(action.returned))
            case ExploreStepEnded(explore_step):
                self._end_step(explore_step)
            case Finish():
                log.info("taskset_ended", explore_steps=self.state.explore_step, groups=self.state.started)
                self._stream.finish(self.state.started)

    def _start_groups(self, explore_step: int, count: int, first: int) -> None:
        for ordinal in range(first, first + count):
            self._spawn(self._make_group(self._progress.plan(ordinal, explore_step, self._share.take())))

    async def _make_group(self, plan: GroupPlan) -> None:
        """Makes one group; in place of a task that fails, another one is done."""
        self._begun_at[plan.ordinal] = time.monotonic()
        while True:
            self._begun[plan.ordinal] = self.state.version[1]
            task = self._taskset.task(self._order.position(plan.position))
            try:
                group = await self._runner.run(
                    task, ordinal=plan.ordinal, explore_step=plan.explore_step, seed=self._config.run.seed
                )
                group = replace(group, task=plan.position)
                check_group(group, self._config.limits)
            except WorkflowFailed as error:
                self._note_failed_group(error)
                position = await self._replacement(plan.position)
                if position is None:
                    self._progress.done(plan.ordinal)
                    del self._begun[plan.ordinal], self._begun_at[plan.ordinal]
                    self.feed(GroupFinished(plan.explore_step))
                    return
                plan = self._progress.plan(plan.ordinal, plan.explore_step, position)
            else:
                self._failed_in_a_row = 0
                self._finished_groups.add(group)
                self._changes.notify()
                return

    async def _replacement(self, failed: int) -> int | None:
        answer = self._share.ask_replacement(failed)
        self._changes.notify()
        # Bounded by the watch over the trainer, which ends the run when none is there for `explorer.peer_timeout`.
        async with self._status.waiting(f"a task in place of task {failed}, which failed", None):
            return await asyncio.shield(answer)

    def _note_failed_group(self, error: WorkflowFailed) -> None:
        self._failed_in_a_row += 1
        self._metrics.count_failed_group()
        allowed = self._config.explorer.max_failed_groups
        log.warning("group_failed", error=error.message, in_a_row=self._failed_in_a_row, allowed=allowed)
        if self._failed_in_a_row > allowed:
            raise WorkflowFailed(
                f"{self._failed_in_a_row} groups failed in a row, `explorer.max_failed_groups` allows {allowed}; "
                f"the last one: {error.message}"
            ) from error

    async def _until_spool_has_room(self) -> None:
        limit = self._config.explorer.spool_max_bytes
        counters = self._spool.counters
        if counters.pending_bytes >= limit:
            waiting_for = f"acknowledgements: the spool holds {counters.pending_bytes} of {limit} bytes"
            self._spool_is_full = True
            self._changes.notify()
            async with self._status.waiting(waiting_for, None):
                await self._changes.until(
                    lambda: counters.pending_bytes < limit or self.state.draining_for_good  # these are the last
                )
            self._spool_is_full = False

    async def _spool_finished(self) -> None:
        """Commits finished groups as one batch, together with the progress that they make."""
        explorer = self._config.explorer
        groups = self._finished_groups.take(
            self._progress.in_flight, explorer.max_groups_per_batch, self._config.limits
        )
        self._spooling = groups
        for group in groups:
            self._progress.done(group.ordinal)

        def make_batch(sequence: int) -> bytearray:
            return batch_to_wire(explorer.id, sequence, groups, send_text=explorer.send_text)

        spool = self._spool.counters
        state = {"progress": self._progress.state(self.state)}
        newest = max(one.newest_version for group in groups for one in group.experiences)
        tasks = [group.task for group in groups]
        async with self._status.waiting(f"the spool's disk to take {len(groups)} groups", None):
            _, batch = await self._spool.call(spool.append, make_batch, len(groups), state, newest, tasks)
        self._metrics.count_bytes(len(batch))
        self._spooling = []
        for group in groups:
            del self._begun[group.ordinal]
            self._metrics.count_group(group, time.monotonic() - self._begun_at.pop(group.ordinal))
            self.feed(GroupFinished(group.explore_step))

    async def _apply(self, epoch: int, step: int) -> None:
        async with AsyncExitStack() as held:
            # Bounded by what an evaluation may take: `explorer.rollout_timeout` for each of its tasks.
            async with self._status.waiting(f"the evaluation to end before version {step} is swapped in", None):
                await held.enter_async_context(self._evaluator.unpinned())
            applied = await self._weights.swap_in(epoch, step)
        if self.state.version == (0, 0) and self._config.explorer.evaluation.at_start:
            self._spawn(self._evaluate())
            # It pins the version before anything else runs.
            await asyncio.sleep(0)
        new_trainer = applied.run_epoch > self.state.version[0]
        lost = new_trainer and self._spool.counters.acknowledged_beyond(*applied.order)
        if lost:
            log.warning(
                "made_again", step=applied.step, reason="a trainer that lost its newest checkpoints had trained it"
            )
        self._take_up(applied, window_lost=lost)
        # A version begins or gives up a window of the schedule, which the next incarnation must know.
        await self._spool.call(self._spool.counters.save_state, {"progress": self._progress.state(self.state)})

    def _take_up(self, version: PolicyVersion, *, window_lost: bool) -> None:
        """The version is live; what an earlier incarnation had in flight is begun on the first one."""
        first = self.state.version == (0, 0)
        self.feed(WeightsApplied(*version.order, window_lost=window_lost))
        if first:
            self._start_interrupted()

    def _start_interrupted(self) -> None:
        """The groups that were in flight when an earlier incarnation ended are made again."""
        if self.state.draining_for_good:
            return
        for plan in self._interrupted:
            self._spawn(self._make_group(plan))
        self._interrupted = []

    async def _ask(self) -> None:
        if not await self._ask_trainer():
            self.feed(NothingNewer())

    def _end_step(self, explore_step: int) -> None:
        self._metrics.end_step(explore_step)
        interval = self._config.explorer.evaluation.interval
        if interval is not None and explore_step % interval == 0:
            self._spawn(self._evaluate())

    async def _evaluate(self) -> None:
        values = await self._evaluator.evaluate()
        if values is not None:
            self._metrics.log(values)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            raise RuntimeError("the explorer does not run")
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
