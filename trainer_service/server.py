"""The TrainerService servicer: decodes, calls, encodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from common import __version__
from common.config.root import TandemConfig
from common.errors import LimitExceeded, ProtocolViolation, RunMismatch, ShuttingDown
from common.monitor.monitor import Monitor
from common.rpc.peers import checked_address, checked_explorer_id, plain
from common.status import StatusBoard
from common.sync.events import SyncRequested
from common.sync.policy import Style
from common.wire.status import timestamp_to_proto, wait_to_proto
from common.wire.versions import version_to_proto
from protos.tandem.v1 import trainer_pb2, trainer_pb2_grpc
from trainer_service.buffer.queue import GroupQueue
from trainer_service.control import Control
from trainer_service.fleet import Fleet
from trainer_service.saver import Saver
from trainer_service.sync_driver import SyncDriver, published_version
from trainer_service.trainer import SOURCE, Trainer

MAX_EXPLORERS = 1024
"""Each that registers, reachable or not, costs a channel and attempts to reach it for as long as the run lasts."""


@dataclass(slots=True, eq=False)
class Stage:
    """What runs in a stage that takes experiences from explorers; None where a stage has none."""

    trainer: Trainer
    saver: Saver
    queue: GroupQueue | None = None
    sync: SyncDriver | None = None
    fleet: Fleet | None = None


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Answers people, and explorers that join."""

    def __init__(
        self, config: TandemConfig, status: StatusBoard[int], monitor: Monitor, control: Control, run_epoch: int
    ) -> None:
        self.stage: Stage | None = None
        """Set when the stage is ready."""
        self._config = config
        self._status = status
        self._monitor = monitor
        self._control = control
        self._run_epoch = run_epoch

    async def GetStatus(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.TrainerServiceGetStatusRequest, context: object
    ) -> trainer_pb2.TrainerServiceGetStatusResponse:
        """What the trainer does, and what it waits for."""
        del request, context
        response = trainer_pb2.TrainerServiceGetStatusResponse(
            run_name=self._config.run.name,
            stage=self._config.stage_name,
            run_epoch=self._run_epoch,
            state=self._status.state,  # type: ignore[arg-type]
            state_since=timestamp_to_proto(self._status.state_since),
            reason=self._status.reason,
            total_steps=self._config.trainer.total_steps or 0,
            waits=[wait_to_proto(wait) for wait in self._status.waits],
            metrics=self._monitor.latest(SOURCE),
            software_version=__version__,
            failure=self._status.failure,
        )
        if self.stage is not None:
            self._add_progress(response, self.stage)
        return response

    async def WatchMetrics(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.WatchMetricsRequest, context: object
    ) -> AsyncIterator[trainer_pb2.WatchMetricsResponse]:
        """Metrics as they are logged."""
        del request, context
        subscription = self._monitor.subscribe()
        try:
            async for record in subscription:
                yield trainer_pb2.WatchMetricsResponse(
                    step=record.step,
                    time=timestamp_to_proto(record.time),
                    source=record.source,
                    values={name: value for name, value in record.values.items() if value is not None},
                )
        finally:
            subscription.close()

    async def RegisterExplorer(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.RegisterExplorerRequest, context: object
    ) -> trainer_pb2.RegisterExplorerResponse:
        """Dials the explorer back."""
        del context
        stage = self._ready()
        if stage.fleet is None or stage.sync is None:
            raise ShuttingDown(f"stage {self._config.stage_name!r} trains on a file; explorers come later")
        if request.run_name != self._config.run.name:
            raise RunMismatch(f"this trainer runs {self._config.run.name!r}, not {plain(request.run_name)!r}")
        address, explorer_id = checked_address(request.address), checked_explorer_id(request.explorer_id)
        known = any(address == link.address or explorer_id == link.explorer_id for link in stage.fleet.links)
        if not known and len(stage.fleet.links) >= MAX_EXPLORERS:
            raise LimitExceeded(f"{len(stage.fleet.links)} explorers are dialled, at most {MAX_EXPLORERS}")
        stage.fleet.dial(address, explorer_id)
        return trainer_pb2.RegisterExplorerResponse(
            run_epoch=self._run_epoch, published=version_to_proto(published_version(stage.sync))
        )

    async def RequestSync(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.RequestSyncRequest, context: object
    ) -> trainer_pb2.RequestSyncResponse:
        """explorer_driven: answers when a newer version is applied at the asker, or that there is none."""
        del context
        stage = self._ready()
        if stage.sync is None or stage.sync.policy.style is not Style.EXPLORER_DRIVEN:
            raise ProtocolViolation(
                f"RequestSync belongs to style explorer_driven, not {self._config.sync.style.value}"
            )
        if request.explorer_id not in stage.sync.state.explorers:
            raise ShuttingDown(
                f"the stream of explorer {plain(request.explorer_id)!r} is not open; ask again when it is"
            )
        answer = await stage.sync.request_sync(request.explorer_id, SyncRequested(request.explorer_id))
        version = published_version(stage.sync) if answer.newer else None
        return trainer_pb2.RequestSyncResponse(
            newer=answer.newer, version=version_to_proto(version) if version is not None else request.have
        )

    async def SaveCheckpoint(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.SaveCheckpointRequest, context: object
    ) -> trainer_pb2.SaveCheckpointResponse:
        """Saves between two steps, and returns when it is durable."""
        del request, context
        stage = self._ready()
        saved = await stage.trainer.save_now()
        return trainer_pb2.SaveCheckpointResponse(step=saved.step, path=saved.relative)

    async def Pause(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.PauseRequest, context: object
    ) -> trainer_pb2.PauseResponse:
        """No further step starts."""
        del request, context
        stage = self._ready()
        self._control.pause()
        return trainer_pb2.PauseResponse(step=stage.trainer.step)

    async def Resume(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.ResumeRequest, context: object
    ) -> trainer_pb2.ResumeResponse:
        """Ends a pause."""
        del request, context
        stage = self._ready()
        self._control.resume()
        return trainer_pb2.ResumeResponse(step=stage.trainer.step)

    async def Stop(  # noqa: N802 - the proto's name
        self, request: trainer_pb2.TrainerServiceStopRequest, context: object
    ) -> trainer_pb2.TrainerServiceStopResponse:
        """The run ends after the running step."""
        del context
        self._control.stop(plain(request.reason) or "asked to stop")
        return trainer_pb2.TrainerServiceStopResponse()

    def _ready(self) -> Stage:
        if self.stage is None:
            raise ShuttingDown("the trainer is starting")
        return self.stage

    def _add_progress(self, response: trainer_pb2.TrainerServiceGetStatusResponse, stage: Stage) -> None:
        response.step = stage.trainer.step
        response.saved_step = stage.saver.saved_step
        if stage.queue is None or stage.sync is None or stage.fleet is None:
            return
        response.queued_groups = len(stage.queue)
        response.published.CopyFrom(version_to_proto(published_version(stage.sync)))
        for link in stage.fleet.links:
            account = stage.queue.accounts.get(link.explorer_id)
            response.explorers.add(
                explorer_id=link.explorer_id,
                address=link.address,
                connected=link.connected,
                applied=version_to_proto(link.applied),
                received_through=account.received_through if account is not None else 0,
                frontier=account.durable_through if account is not None else 0,
                credit_limit=link.credit_limit,
                finished=link.view.finished,
                metrics=self._monitor.latest(link.explorer_id),
            )
