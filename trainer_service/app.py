"""Wires the trainer of one stage together, runs it, and takes it apart again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

from common.audit.ledger_files import newest_epoch, read_beginnings
from common.audit.records import Cut, Start
from common.changes import Changes
from common.checkpoint.run_lock import exclusive
from common.checkpoint.store import CheckpointStore, LoadedCheckpoint
from common.config.describe import describe_sync, sync_policy
from common.config.root import TandemConfig
from common.config.security import Role
from common.config.stages import result_folder
from common.errors import StaleEpoch, TandemError
from common.logging import bind_context
from common.models.tokenizer import load_tokenizer, tokenizer_hash
from common.monitor.build import build_sinks
from common.monitor.monitor import Monitor
from common.process import configure_threads
from common.rpc.credentials import ServerSecurity
from common.rpc.server import RpcServer
from common.service import Signals, StageEnd
from common.status import StatusBoard
from common.sync.lineage import Lineage, restore
from common.sync.policy import Method
from protos.tandem.v1 import trainer_pb2, trainer_pb2_grpc
from trainer_service.buffer.examples import ExampleBuffer
from trainer_service.buffer.queue import GroupQueue
from trainer_service.buffer.source import BatchSource, ExampleSource, ExplorerSource
from trainer_service.control import Control
from trainer_service.engine.base import TrainEngine
from trainer_service.engine.torch_engine import TorchTrainEngine
from trainer_service.engine.worker import EngineWorker
from trainer_service.fleet import Fleet
from trainer_service.ledger import LedgerFile, frontiers
from trainer_service.publish.checkpoint import CheckpointPublisher
from trainer_service.publish.publication import Publisher
from trainer_service.publish.shards import ShardPublisher
from trainer_service.resumable import check_examples_state, check_explorers_state
from trainer_service.saver import Saver, publish_result
from trainer_service.server import Stage, TrainerServicer
from trainer_service.sync_driver import SyncDriver
from trainer_service.trainer import NoSchedule, Trainer

log = structlog.get_logger(__name__)

SERVICE = "tandem.v1.TrainerService"


async def run_stage(config: TandemConfig, signals: Signals) -> StageEnd:
    """One stage, from resume to the final save. Raises what ended it otherwise."""
    sync_policy(config)  # refuses what would hang, before anything is loaded
    with ExitStack() as held:
        held.enter_context(exclusive(config.checkpoint_root, "trainer"))
        store = CheckpointStore(config.checkpoint_root, config.checkpoint.keep)
        for name in store.sweep():
            log.info("leftover_removed", path=name)
        # Whoever removes the checkpoints to start afresh may leave the ledgers, which no later start writes over.
        run_epoch = store.claim_run_epoch(above=newest_epoch(config.stage_folder))
        bind_context(epoch=run_epoch)
        return await TrainerStage(config, signals, store, run_epoch).run()


class TrainerStage:
    """The parts of one stage."""

    def __init__(self, config: TandemConfig, signals: Signals, store: CheckpointStore, run_epoch: int) -> None:
        self._config = config
        self._store = store
        self._run_epoch = run_epoch
        self._changes = Changes()
        self._status: StatusBoard[int] = StatusBoard(trainer_pb2.TRAINER_STATE_STARTING)
        self._control = Control(self._changes, self._status)
        self._worker = EngineWorker()
        self._ledger: LedgerFile | None = None
        self._monitor = Monitor(build_sinks(config, "trainer"))
        security = ServerSecurity(config.security, Role.TRAINER)
        self._server = RpcServer(config.trainer.address, SERVICE, config.limits, security)
        self._servicer = TrainerServicer(config, self._status, self._monitor, self._control, run_epoch)
        signals.subscribe(lambda number: self._control.stop(f"signal {number}", number))

    async def run(self) -> StageEnd:
        """Serves from the start, so that others see what it is doing; SERVING as soon as the stage is ready."""
        await self._server.start(
            lambda server: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self._servicer, server)
        )
        fleet: Fleet | None = None
        try:
            stage = await self._build()
            fleet = stage.fleet
            self._servicer.stage = stage
            await self._server.set_serving(serving=True)
            await self._train(stage)
        except BaseException as error:
            self._status.failure = _shown(error)
            self._status.enter(trainer_pb2.TRAINER_STATE_FAILED, self._status.failure)
            raise
        finally:
            await self._close(fleet)
        return StageEnd(run_is_over=self._control.stopping)

    async def _build(self) -> Stage:
        config = self._config
        configure_threads(config.trainer, processes_on_host=2)
        check = check_examples_state if config.buffer.source == "file" else check_explorers_state
        loaded = await asyncio.to_thread(self._store.newest, check) if config.checkpoint.resume else None
        engine = await self._worker.submit(TorchTrainEngine, config, config.trainer.total_steps)
        if loaded is not None:
            await self._resume(engine, loaded)
        step = loaded.manifest.step if loaded is not None else 0
        if config.buffer.source == "file":
            return await self._build_from_file(engine, loaded, step)
        return await self._build_from_explorers(engine, loaded, step)

    async def _resume(self, engine: TrainEngine, loaded: LoadedCheckpoint) -> None:
        for refused in loaded.refused:
            log.warning("checkpoint_refused", checkpoint=refused.relative, reason=refused.reason)
        await self._worker.submit(engine.load, loaded.path)
        log.info("resumed", step=loaded.manifest.step, checkpoint=loaded.relative)

    async def _build_from_file(self, engine: TrainEngine, loaded: LoadedCheckpoint | None, step: int) -> Stage:
        config = self._config
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        buffer = await asyncio.to_thread(
            ExampleBuffer,
            Path(str(config.buffer.path)),
            tokenizer,
            config.trainer.batch_size,
            shuffle=config.buffer.shuffle,
            epochs=config.buffer.epochs,
            seed=config.run.seed,
            max_length=config.model.max_length,
        )
        source = ExampleSource(buffer, lambda: self._control.stopping)
        if loaded is not None:
            source.restore(loaded.manifest.state["source"])
        saver = self._saver(engine, lambda _state: None, loaded)
        return Stage(self._trainer(engine, source, NoSchedule(), saver, step), saver)

    async def _build_from_explorers(self, engine: TrainEngine, loaded: LoadedCheckpoint | None, step: int) -> Stage:
        config = self._config
        log.info("sync_regime", text=describe_sync(config))
        self._ledger = await asyncio.to_thread(LedgerFile, config.stage_folder, self._start_record(loaded))
        policy = sync_policy(config)
        queue = GroupQueue(
            config.sync.max_staleness, self._lineage(loaded), self._ledger, reproducible=policy.reproducible
        )
        saver = self._saver(engine, self._acknowledge_durable, loaded)
        publisher = self._publisher(saver)
        sync = SyncDriver(
            policy,
            publisher,
            engine,
            self._worker,
            self._status,
            self._changes,
            step=step,
            timeout=config.sync.timeout,
            min_explorers=config.trainer.min_explorers,
            interrupted=lambda: self._control.stopping,
        )
        source = ExplorerSource(config, queue, sync, self._status, self._changes, lambda: self._control.stopping)
        if loaded is not None:
            source.restore(loaded.manifest.state["source"])
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        layout = await self._worker.submit(lambda: engine.layout)
        fleet = Fleet(
            config,
            run_epoch=self._run_epoch,
            fingerprints=(layout.layout_hash, tokenizer_hash(tokenizer)),
            queue=queue,
            sync=sync,
            publisher=publisher,
            status=self._status,
            changes=self._changes,
            monitor=self._monitor,
            step=self._step,
        )
        trainer = self._trainer(engine, source, sync, saver, step, fleet)
        return Stage(trainer, saver, queue, sync, fleet)

    def _acknowledge_durable(self, state: Mapping[str, Any]) -> None:
        stage = self._servicer.stage
        if stage is not None and stage.fleet is not None:
            stage.fleet.acknowledge_durable(state)

    def _step(self) -> int:
        return self._servicer.stage.trainer.step if self._servicer.stage is not None else 0

    async def _train(self, stage: Stage) -> None:
        fleet = stage.fleet
        if fleet is None:
            await stage.trainer.run(_nothing_to_publish)
        else:
            watching = asyncio.create_task(fleet.run())
            watching.add_done_callback(
                lambda task: self._control.fail(task.exception()) if not task.cancelled() else None
            )
            try:
                await stage.trainer.run(fleet.publish_final)
                if self._control.signal is None:
                    await fleet.stop(self._control.stop_reason or "the run is finished", finished=True)
            except StaleEpoch:
                raise  # a successor has the explorers
            except Exception as error:
                await fleet.stop(f"the trainer failed: {_shown(error)}", finished=False)
                raise
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        final = stage.saver.saving_at(stage.trainer.step)
        if final is not None and (final.result().path / "config.json").exists():
            await asyncio.to_thread(publish_result, final.result().path, result_folder(self._config))
        ended = self._control.stop_reason
        self._status.enter(
            trainer_pb2.TRAINER_STATE_STOPPED if ended else trainer_pb2.TRAINER_STATE_FINISHED, ended or ""
        )
        log.info("trained", steps=stage.trainer.step, reason=ended or "finished")

    async def _close(self, fleet: Fleet | None) -> None:
        stage = self._servicer.stage
        if stage is not None and stage.sync is not None:
            stage.sync.close()
        if fleet is not None:
            await fleet.close()
        try:
            self._monitor.close()  # ends WatchMetrics too, for which the server would wait
        finally:
            await self._server.stop()
            await asyncio.to_thread(self._worker.close)
            if stage is not None:
                await asyncio.to_thread(stage.saver.close)
            if self._ledger is not None:
                await asyncio.to_thread(self._ledger.close)

    def _lineage(self, loaded: LoadedCheckpoint | None) -> Lineage:
        if loaded is None:
            lineage = Lineage(self._run_epoch)
        else:
            before = restore(loaded.manifest.run_epoch, loaded.manifest.state["source"]["lineage"])
            lineage = before.next(self._run_epoch, loaded.manifest.step)
        return lineage.knowing(read_beginnings(self._config.stage_folder))

    def _start_record(self, loaded: LoadedCheckpoint | None) -> Start:
        config, resumed = self._config, None
        if loaded is not None:
            manifest = loaded.manifest
            resumed = Cut(manifest.run_epoch, manifest.step, int(manifest.state["source"]["ledger"]))
        return Start(
            run=config.run.name,
            stage=config.stage_name,
            epoch=self._run_epoch,
            resumed=resumed,
            frontiers=frontiers(loaded.manifest.state) if loaded is not None else {},
            max_staleness=config.sync.max_staleness,
            style=config.sync.style.value,
            acknowledges_steps=config.checkpoint.save_interval is None,
            reproducible=config.run.deterministic,
            time=time.time(),
        )

    def _saver(self, engine: TrainEngine, on_durable: Any, loaded: LoadedCheckpoint | None) -> Saver:
        return Saver(
            self._config,
            self._store,
            engine,
            self._worker,
            self._run_epoch,
            on_durable,
            loaded,
            self._ledger,
            status=self._status,
        )

    def _publisher(self, saver: Saver) -> Publisher:
        if self._config.sync.method is Method.CHECKPOINT:
            return CheckpointPublisher(self._config, self._run_epoch, saver.saving_at)
        return ShardPublisher(self._config, self._run_epoch)

    def _trainer(
        self,
        engine: TrainEngine,
        source: BatchSource,
        schedule: SyncDriver | NoSchedule,
        saver: Saver,
        step: int,
        fleet: Fleet | None = None,
    ) -> Trainer:
        acknowledge = fleet.acknowledge_trained if fleet is not None else None
        return Trainer(
            config=self._config,
            engine=engine,
            worker=self._worker,
            source=source,
            schedule=schedule,
            saver=saver,
            monitor=self._monitor,
            status=self._status,
            control=self._control,
            step=step,
            extra_metrics=fleet.metrics if fleet is not None else dict,
            on_step_without_saves=acknowledge,
        )


def _shown(error: BaseException) -> str:
    return error.message if isinstance(error, TandemError) else f"{type(error).__name__}: {error}"


async def _nothing_to_publish() -> None:
    """A stage without explorers has nobody to bring weights to."""
