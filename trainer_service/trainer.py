"""The trainer's loop: sample, train, synchronize, save; to the end of steps, data or patience."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import structlog

from common.checkpoint.store import SavedCheckpoint
from common.config.root import TandemConfig
from common.errors import TrainingDiverged
from common.monitor.monitor import Monitor
from common.status import StatusBoard
from common.sync.events import TrainStepDone, TrainStepStarted
from protos.tandem.v1 import trainer_pb2
from trainer_service.buffer.source import BatchSource, Sample
from trainer_service.control import Control
from trainer_service.engine.base import StepResult, TrainEngine
from trainer_service.engine.worker import EngineWorker
from trainer_service.saver import Saver
from trainer_service.step_metrics import sample_metrics, step_metrics

log = structlog.get_logger(__name__)

SOURCE = "trainer"
"""Under which the trainer's metrics are logged."""


class Schedule(Protocol):
    """The sync schedule, as the loop sees it."""

    def feed(self, event: TrainStepStarted | TrainStepDone) -> None:
        """Takes an event in, and starts what has become due."""

    async def until_may_train(self) -> None:
        """Waits while a due version cannot be published yet."""


class NoSchedule:
    """For stages without explorers."""

    def feed(self, event: TrainStepStarted | TrainStepDone) -> None:
        """Nothing is ever due."""

    async def until_may_train(self) -> None:
        """At once."""


class Trainer:
    """One stage's training."""

    def __init__(
        self,
        *,
        config: TandemConfig,
        engine: TrainEngine,
        worker: EngineWorker,
        source: BatchSource,
        schedule: Schedule,
        saver: Saver,
        monitor: Monitor,
        status: StatusBoard[int],
        control: Control,
        step: int,
        extra_metrics: Callable[[], dict[str, float]],
        on_step_without_saves: Callable[[], None] | None,
    ) -> None:
        """`on_step_without_saves` is called after each step of a run that saves nothing before its end."""
        self.step = step
        """Steps done."""
        self._config = config
        self._engine = engine
        self._worker = worker
        self._source = source
        self._schedule = schedule
        self._saver = saver
        self._monitor = monitor
        self._status = status
        self._control = control
        self._extra_metrics = extra_metrics
        self._on_step_without_saves = on_step_without_saves
        self._step_ended = time.monotonic()
        self._engine_is_sound = True
        self._training = False
        self._requested_save: asyncio.Future[asyncio.Future[SavedCheckpoint]] | None = None

    async def run(self, publish_final: Callable[[], Awaitable[None]]) -> None:
        """Trains to the end, saves, and lets `publish_final` bring the final weights to the explorers.

        On an error: saves the last good state, and raises it.
        """
        try:
            await self._train_to_the_end()
            self._control.raise_failure()
            final = self._begin_save(final=True)
            if self._control.signal is None:
                await publish_final()
                self._control.raise_failure()
            self._status.enter(trainer_pb2.TRAINER_STATE_SAVING, f"final save at step {self.step}")
            await final
            await self._saver.all_done()
        except Exception:
            await self._save_last_good_state()
            raise

    async def save_now(self) -> SavedCheckpoint:
        """Saves between two steps: at once if none runs, else after the running one. Returns when it is durable."""
        if not self._training:
            return await asyncio.shield(self._begin_save())
        if self._requested_save is None:
            self._requested_save = asyncio.get_running_loop().create_future()
        return await asyncio.shield(await asyncio.shield(self._requested_save))

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores beside the engine's state, as JSON."""
        return {"step": self.step, "source": self._source.state()}

    async def _train_to_the_end(self) -> None:
        sampling = self._sample_ahead()
        try:
            while not self._is_over():
                await self._control.until_resumed()
                sample = await sampling
                if sample is None:
                    log.info("data_ended", step=self.step)
                    return
                await self._schedule.until_may_train()
                if self._control.stopping:
                    return
                sampling = await self._train(sample)
                self._saver.raise_failure()
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    def _is_over(self) -> bool:
        total = self._config.trainer.total_steps
        return self._control.stopping or (total is not None and self.step >= total)

    def _sample_ahead(self, steps: int = 1) -> asyncio.Task[Sample | None]:
        """Starts to sample for a step to come."""
        return asyncio.create_task(self._source.next(self.step + steps))

    async def _train(self, sample: Sample) -> asyncio.Task[Sample | None]:
        """One step; samples for the next one meanwhile."""
        step = self.step + 1
        self._status.enter(trainer_pb2.TRAINER_STATE_TRAINING, f"step {step}")
        self._schedule.feed(TrainStepStarted(sample.groups_by_explorer))
        self._training = True
        began = time.monotonic()
        training = self._worker.submit(self._engine.train_step, sample.batch)
        next_sample = self._sample_ahead(2)
        # Computed while the engine works: once the step is done, its publication is all that counts.
        of_sample = sample_metrics(sample, step)
        result = await self._result_of(training)
        train_seconds = time.monotonic() - began
        self.step = step
        self._source.trained(sample, step, applied=result.applied)
        self._training = False
        if self._saver.is_due(step) or self._requested_save is not None:
            self._begin_save(final=step == self._config.trainer.total_steps)
        self._schedule.feed(TrainStepDone())
        if self._config.checkpoint.save_interval is None and self._on_step_without_saves is not None:
            self._on_step_without_saves()
        self._log(sample, of_sample, result, train_seconds)
        return next_sample

    def _begin_save(self, *, final: bool = False) -> asyncio.Future[SavedCheckpoint]:
        save = self._saver.begin(self.step, self.state(), final=final)
        requested, self._requested_save = self._requested_save, None
        if requested is not None:
            requested.set_result(save)
        return save

    async def _result_of(self, training: asyncio.Future[StepResult]) -> StepResult:
        try:
            return await training
        except TrainingDiverged:
            raise
        except Exception:
            # It may have stopped in the middle of an update.
            self._engine_is_sound = False
            raise

    async def _save_last_good_state(self) -> None:
        if not self._engine_is_sound:
            log.error("state_not_saved", reason="the step failed inside the engine; the checkpoint before is good")
            return
        if self._saver.disk_hangs:
            log.error("state_not_saved", reason="a save before it was not durable in time")
            return
        try:
            await self._begin_save(final=True)
        except Exception as error:  # noqa: BLE001 - the error that ended the run is the one to raise
            log.error("final_save_failed", error=str(error))  # noqa: TRY400 - the cause is logged where it is raised

    def _log(self, sample: Sample, of_sample: Mapping[str, float], result: StepResult, train_seconds: float) -> None:
        now = time.monotonic()
        metrics = step_metrics(
            sample, of_sample, result, train_seconds=train_seconds, loop_seconds=now - self._step_ended
        )
        self._step_ended = now
        metrics |= self._extra_metrics()
        self._monitor.log(self.step, time.time(), SOURCE, metrics)
        if not result.applied:
            log.warning("step_skipped", step=self.step, reason="non-finite loss or gradient")
        for preview in sample.previews:
            log.info("preview", step=self.step, prompt=preview.prompt, response=preview.response)
