"""Wires the explorer of one stage together, runs it, and takes it apart again."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import structlog
import torch

from common.changes import Changes
from common.config.describe import describe_sync, sync_policy
from common.config.root import TandemConfig
from common.config.security import Role
from common.errors import (
    PeerFailed,
    PeerUnavailable,
    RunMismatch,
    ShuttingDown,
    StorageFailed,
    TandemError,
    WaitTimedOut,
)
from common.models.tokenizer import load_tokenizer, tokenizer_hash
from common.monitor.build import build_sinks
from common.monitor.monitor import Monitor
from common.process import configure_threads
from common.rpc.credentials import ServerSecurity
from common.rpc.server import RpcServer
from common.service import Signals, StageEnd
from common.status import StatusBoard
from common.sync import explorer_machine
from common.sync.actions import ReportWaiting
from common.sync.events import ExplorerEvent
from common.tasks import task_scope
from common.weights.version import NEVER_APPLIED
from common.wire.revision import PROTOCOL_REVISION
from common.wire.versions import version_to_proto
from explorer_service.engine.base import RolloutEngine
from explorer_service.engine.registry import make_engine
from explorer_service.evaluation import Evaluator
from explorer_service.experience_stream import ExperienceStream, Words
from explorer_service.explore_metrics import ExploreMetrics
from explorer_service.explorer import Explorer
from explorer_service.group_runner import GroupRunner
from explorer_service.kept_weights import KeptWeights
from explorer_service.parts import build_taskset
from explorer_service.progress import restore
from explorer_service.server import SERVICE, ExplorerServicer, Parts, add_explorer_servicer
from explorer_service.spool_thread import SpoolThread
from explorer_service.task_share import TaskShare
from explorer_service.tasksets import Taskset
from explorer_service.tasksets.order import TaskOrder
from explorer_service.trainer_client import SyncRequests, TrainerClient
from explorer_service.trainer_watch import TrainerWatch
from explorer_service.weight_intake import WeightIntake
from protos.tandem.v1 import explorer_pb2

log = structlog.get_logger(__name__)

PROGRESS_KEY = "progress"
TASKSET_KEY = "taskset"


async def run_stage(config: TandemConfig, signals: Signals) -> StageEnd:
    """One stage, until the trainer says that it is over. Raises what ended it otherwise."""
    if config.buffer.source == "file":
        log.info("stage_skipped", reason="it trains on a file")
        return StageEnd(run_is_over=False)
    sync_policy(config)  # refuses what would hang, before anything is loaded
    return await ExplorerStage(config, signals).run()


class ExplorerStage:
    """The parts of one stage."""

    def __init__(self, config: TandemConfig, signals: Signals) -> None:
        self._config = config
        self._signals = signals
        self._changes = Changes()
        self._status: StatusBoard[int] = StatusBoard(explorer_pb2.EXPLORER_STATE_STARTING)
        self._monitor = Monitor(build_sinks(config, config.explorer.id))
        security = ServerSecurity(config.security, Role.EXPLORER)
        self._server = RpcServer(config.explorer.address, SERVICE, config.limits, security)
        self._servicer = ExplorerServicer(config=config, status=self._status, monitor=self._monitor, stop=self._stop)
        self._spool = SpoolThread()
        self._engine: RolloutEngine | None = None
        self._client: TrainerClient | None = None
        self._end: tuple[str, bool] | None = None

    async def run(self) -> StageEnd:
        """Serves from the start, so that others see what it is doing; SERVING as soon as the stage is ready."""
        await self._server.start(lambda server: add_explorer_servicer(self._servicer, server))
        try:
            async with task_scope() as tasks:
                await self._build()
                await self._server.set_serving(serving=True)
                await self._explore(tasks)
        except Exception as error:
            message = error.message if isinstance(error, TandemError) else f"{type(error).__name__}: {error}"
            self._status.failure = message
            self._status.enter(explorer_pb2.EXPLORER_STATE_FAILED, message)
            if self._servicer.parts is not None and self._end is None:
                self._servicer.parts.stream.end(PeerFailed(message))
            raise
        finally:
            await self._close()
        return StageEnd(run_is_over=False)

    async def _build(self) -> None:
        config = self._config
        configure_threads(config.explorer, processes_on_host=2)
        torch.use_deterministic_algorithms(config.run.deterministic)
        policy = sync_policy(config)
        log.info("sync_regime", text=describe_sync(config))
        folder = config.stage_folder / "explorers"
        await self._spool.open(folder / f"{config.explorer.id}.spool", config.run.name, config.explorer.id)
        taskset = await asyncio.to_thread(build_taskset, config.taskset)
        await self._check_taskset(taskset)
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        engine = self._engine = await asyncio.to_thread(make_engine, config)
        progress, state = restore((await self._spool.call(self._spool.counters.load_state)).get(PROGRESS_KEY, {}))
        kept = KeptWeights(folder / f"{config.explorer.id}.weights") if policy.reproducible else None
        weights = WeightIntake(config, engine, self._spool, self._changes, self._feed, kept)
        await weights.take_up_kept()
        if kept is not None and state.window is not None and weights.live == NEVER_APPLIED:
            raise StorageFailed(
                f"the weights that explorer {config.explorer.id} kept are not in {folder} any more; a deterministic run "
                "cannot go on without them"
            )
        fingerprint = tokenizer_hash(tokenizer)
        order = TaskOrder(len(taskset), config.taskset.shuffle, config.taskset.epochs, config.run.seed)
        order_hash = f"{taskset.fingerprint}-{order.fingerprint}"
        share = TaskShare(order.total)
        stream = ExperienceStream(
            config,
            self._spool,
            self._status,
            self._changes,
            share,
            self._feed,
            Words(lambda: self._hello(engine, fingerprint, order, order_hash), self._stands, self._oldest_in_flight),
        )
        if config.explorer.trainer is not None:
            self._client = TrainerClient(config, config.explorer.trainer, self._status, self._changes)
        evaluator = await self._evaluator(engine, tokenizer, weights)
        explorer = Explorer(
            config=config,
            policy=policy,
            runner=self._runner(engine, tokenizer, config),
            taskset=taskset,
            order=order,
            share=share,
            progress=progress,
            state=state,
            spool=self._spool,
            weights=weights,
            stream=stream,
            evaluator=evaluator,
            metrics=ExploreMetrics(config.explorer.id, engine, weights, self._spool, stream, self._monitor),
            status=self._status,
            changes=self._changes,
            ask_trainer=SyncRequests(self._client, config.sync.timeout, lambda: weights.live),
        )
        self._policy = policy
        self._servicer.parts = Parts(explorer, weights, stream, evaluator, self._spool)

    async def _explore(self, tasks: asyncio.TaskGroup) -> None:
        parts = self._parts
        working = [
            tasks.create_task(parts.explorer.run(tasks)),
            tasks.create_task(self._watch_trainer(parts.stream)),
            tasks.create_task(self._show_state()),
        ]
        client = self._client
        if client is not None:
            own = self._config.explorer.advertise or self._server.address
            working.append(tasks.create_task(client.keep_registered(own, lambda: parts.stream.connected)))
            watch = TrainerWatch(
                client.ask_for_a_sign,
                lambda: client.reached,
                self._changes,
                lambda: self._waiting_for() if parts.stream.connected else "",
                self._config.explorer.peer_timeout,
            )
            working.append(tasks.create_task(watch.run()))
        self._signals.subscribe(lambda number: self._stop(f"signal {number}", True))
        await self._changes.until(lambda: self._end is not None)
        reason, finished = self._end or ("", True)
        if not finished:
            raise PeerFailed(reason)
        if self._signals.received is not None:
            await parts.explorer.drain(self._config.explorer.rollout_timeout)
        self._status.enter(explorer_pb2.EXPLORER_STATE_STOPPED, reason)
        log.info("explored", explore_steps=parts.explorer.state.explore_step, reason=reason)
        for task in working:
            task.cancel()
        parts.explorer.cancel()

    @property
    def _parts(self) -> Parts:
        if self._servicer.parts is None:
            raise RuntimeError("the stage is not built")
        return self._servicer.parts

    def _feed(self, event: ExplorerEvent) -> None:
        self._parts.explorer.feed(event)

    def _stop(self, reason: str, finished: bool) -> None:
        if self._end is None:
            self._end = (reason, finished)
        self._changes.notify()

    def _stands(self) -> ReportWaiting | None:
        state = self._parts.explorer.state
        return explorer_machine.report_of_waiting(state) if explorer_machine.stands(state, self._policy) else None

    def _oldest_in_flight(self) -> int | None:
        return self._parts.explorer.oldest_in_flight()

    async def _hello(
        self, engine: RolloutEngine, tokenizer_fingerprint: str, order: TaskOrder, order_hash: str
    ) -> explorer_pb2.Hello:
        spool = self._spool.counters
        # First what is in work: what is spooled meanwhile is named twice, and nothing is left out.
        tasks_held = set(self._parts.explorer.tasks_in_work)
        tasks_held.update(await self._spool.call(spool.held_tasks))
        state = self._parts.explorer.state
        return explorer_pb2.Hello(
            explorer_id=self._config.explorer.id,
            incarnation=spool.incarnation,
            layout_hash=engine.layout_hash,
            tokenizer_hash=tokenizer_fingerprint,
            last_sequence=spool.last_sequence,
            groups_started=state.started,
            policy_version=version_to_proto(self._parts.weights.live),
            batch_size=self._config.explorer.batch_size,
            protocol_revision=PROTOCOL_REVISION,
            acknowledged_through=spool.acknowledged,
            acknowledged_groups=spool.acknowledged_groups,
            total_tasks=order.total or 0,
            task_order_hash=order_hash,
            tasks_held=sorted(tasks_held),
        )

    async def _check_taskset(self, taskset: Taskset) -> None:
        """A cursor means nothing in another taskset."""
        state = await self._spool.call(self._spool.counters.load_state)
        known = state.get(TASKSET_KEY)
        if known is None:
            await self._spool.call(self._spool.counters.save_state, {TASKSET_KEY: taskset.fingerprint})
        elif known != taskset.fingerprint:
            raise RunMismatch(
                f"this run began with another taskset: {known}, now {taskset.fingerprint}; give the run another name"
            )

    async def _evaluator(self, engine: RolloutEngine, tokenizer: Any, weights: WeightIntake) -> Evaluator:
        held_out = self._config.explorer.evaluation.taskset
        if held_out is None:
            return Evaluator(self._config, None, None, weights)
        taskset = await asyncio.to_thread(build_taskset, held_out)
        runner = GroupRunner(
            engine, tokenizer, held_out, self._config.explorer, max_length=self._config.model.max_length
        )
        return Evaluator(self._config, runner, taskset, weights)

    def _runner(self, engine: RolloutEngine, tokenizer: Any, config: TandemConfig) -> GroupRunner:
        return GroupRunner(engine, tokenizer, config.taskset, config.explorer, max_length=config.model.max_length)

    async def _watch_trainer(self, stream: ExperienceStream) -> None:
        """Raises PeerUnavailable when no trainer was there for `explorer.peer_timeout`."""
        explorer = self._config.explorer
        timeout = explorer.join_timeout or explorer.peer_timeout
        while True:
            try:
                async with self._status.waiting("a trainer's stream", timeout if timeout < math.inf else None):
                    await self._changes.until(lambda: stream.connected)
            except WaitTimedOut:
                raise PeerUnavailable(f"no trainer for {timeout:g} seconds") from None
            timeout = explorer.peer_timeout
            await self._changes.until(lambda: not stream.connected)

    def _waiting_for(self) -> str:
        return explorer_machine.waiting_for(self._parts.explorer.state, self._policy)

    async def _show_state(self) -> None:
        """Keeps the status, and what the schedule waits for, in step with the sync machine."""
        explorer = self._parts.explorer
        while True:
            state, reason = _state_of(explorer, self._policy)
            self._status.enter(state, reason)

            def differs(before: tuple[int, str] = (state, reason)) -> bool:
                return _state_of(explorer, self._policy) != before

            waits = self._waiting_for()
            # The trainer bounds it by deadlines of its own; that it is there, and works, is watched beside this.
            async with self._status.waiting(waits, None) if waits else contextlib.nullcontext():
                await self._changes.until(differs)

    async def _close(self) -> None:
        parts = self._servicer.parts
        if parts is not None:
            parts.explorer.cancel()
            parts.stream.end(ShuttingDown("the explorer ends"))
            parts.weights.close()
        try:
            self._monitor.close()
        finally:
            await self._server.stop()
            if self._client is not None:
                await self._client.close()
            if self._engine is not None:
                await self._engine.close()
            await self._spool.close()


def _state_of(explorer: Explorer, policy: Any) -> tuple[int, str]:
    """What the status shows of the sync machine's state."""
    state = explorer.state
    waiting_for = explorer_machine.waiting_for(state, policy)
    if state.finished:
        return explorer_pb2.EXPLORER_STATE_FINISHED, "the taskset has ended"
    if state.version == (0, 0):
        return explorer_pb2.EXPLORER_STATE_WAITING_FOR_WEIGHTS, waiting_for
    if state.phase in {explorer_machine.Phase.WAITING, explorer_machine.Phase.ASKING}:
        return explorer_pb2.EXPLORER_STATE_WAITING_FOR_SYNC, waiting_for
    if state.phase is explorer_machine.Phase.DRAINING or state.draining_for_good:
        return explorer_pb2.EXPLORER_STATE_DRAINING, f"explore step {state.explore_step} ends"
    if waiting_for:
        return explorer_pb2.EXPLORER_STATE_WAITING_FOR_CREDIT, waiting_for
    return explorer_pb2.EXPLORER_STATE_EXPLORING, f"explore step {state.explore_step}"
