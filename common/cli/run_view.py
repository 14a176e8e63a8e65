"""What is known of a run while it goes on: fed by both services, shown by a display."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.cli.words import clean, state_words
from common.status import Wait
from common.wire.status import wait_from_proto
from protos.tandem.v1 import explorer_pb2, trainer_pb2

_KEPT = 400
"""Rewards kept for the picture of the last steps."""
_MAX_WAITS = 16
_SMOOTHING = 0.1
"""Weight of the newest step: an estimate of what is to come looks back over some ten."""
SILENT_SECONDS = 6.0
"""Above the deadline of one question."""
LATELY_SECONDS = 2.5
"""Above the time between two questions."""


@dataclass(slots=True)
class SideView:
    """One service."""

    state: str = "starting"
    reason: str = ""
    stage: str = ""
    version: int | None = None
    """Step of the version that it published, or runs on; None before the first."""
    waits: tuple[Wait, ...] = ()
    tokens_per_s: float | None = None
    answered: float | None = None
    """When it answered last, of `time.monotonic()`; None before the first time."""
    exit_code: int | None = None
    """None while its process runs."""

    def is_silent(self, now: float) -> bool:
        """It has answered before, and not for longer than a restart between two stages takes; `now` as `answered`."""
        return self.answered is not None and now - self.answered > SILENT_SECONDS

    def answered_lately(self, now: float) -> bool:
        """What it said still holds; `now` as `answered`."""
        return self.exit_code is None and self.answered is not None and now - self.answered <= LATELY_SECONDS


@dataclass(slots=True)
class RunView:
    """The run, as far as it has been told."""

    name: str
    stages: tuple[str, ...]
    began: float = field(default_factory=time.monotonic)
    """Of `time.monotonic()`."""
    trainer: SideView = field(default_factory=SideView)
    explorer: SideView = field(default_factory=SideView)
    step: int = 0
    total: int | None = None
    explore_step: int = 0
    queued_groups: int = 0
    spooled: int = 0
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    held_out: list[tuple[int, float]] = field(default_factory=list)
    """Step and mean reward of the first and the newest evaluation."""
    loss: float | None = None
    staleness_mean: float | None = None
    staleness_max: float | None = None
    sync_seconds: float | None = None
    step_seconds: float | None = None
    """Of one step, smoothed over the last ones."""
    dropped: int = 0
    stopping: bool = False
    """Both were asked to end."""

    def side(self, name: str) -> SideView:
        """By the words "trainer" and "explorer"."""
        return self.trainer if name == "trainer" else self.explorer

    @property
    def published(self) -> int | None:
        """Step of the newest version; the explorer may have told of it first, as the two are asked at different times."""
        known = [version for version in (self.trainer.version, self.explorer.version) if version is not None]
        return max(known, default=None)

    @property
    def stage(self) -> str:
        """The stage that the trainer is in."""
        return self.trainer.stage or self.stages[0]

    def take_trainer(self, status: trainer_pb2.TrainerServiceGetStatusResponse) -> None:
        """The trainer's status. Raises MalformedData for times that are none."""
        side = self.trainer
        if status.stage and side.stage and status.stage != side.stage:
            self._next_stage()
        side.answered = time.monotonic()
        side.stage = clean(status.stage)
        side.state = state_words(trainer_pb2.TrainerState, status.state)
        side.reason = clean(status.failure or status.reason)
        side.version = status.published.step if status.published.run_epoch else None
        side.waits = tuple(wait_from_proto(wait) for wait in status.waits[:_MAX_WAITS])
        self.step = max(self.step, status.step)
        self.total = status.total_steps or None
        self.queued_groups = status.queued_groups

    def take_explorer(self, status: explorer_pb2.ExplorerServiceGetStatusResponse) -> None:
        """The explorer's status. Raises MalformedData for times that are none."""
        side = self.explorer
        side.answered = time.monotonic()
        side.stage = clean(status.stage)
        side.state = state_words(explorer_pb2.ExplorerState, status.state)
        side.reason = clean(status.failure or status.reason)
        side.version = status.policy_version.step if status.policy_version.run_epoch else None
        side.waits = tuple(wait_from_proto(wait) for wait in status.waits[:_MAX_WAITS])
        side.tokens_per_s = status.metrics.get("throughput/rollout_tokens_per_s", side.tokens_per_s)
        self.explore_step = status.explore_step
        self.spooled = status.batches_spooled

    def take_metrics(self, step: int, source: str, values: Mapping[str, float]) -> None:
        """One record of the metrics log."""
        if "eval/reward_mean" in values:
            self.held_out[1:] = [(step, values["eval/reward_mean"])]
        if source != "trainer":
            self.explorer.tokens_per_s = values.get("throughput/rollout_tokens_per_s", self.explorer.tokens_per_s)
            return
        self.step = max(self.step, step)
        if "reward/mean" in values:
            self.rewards.append(values["reward/mean"])
        self.trainer.tokens_per_s = values.get("throughput/train_tokens_per_s", self.trainer.tokens_per_s)
        self.loss = values.get("loss/total", self.loss)
        self.staleness_mean = values.get("sample/staleness_mean", self.staleness_mean)
        self.staleness_max = values.get("sample/staleness_max", self.staleness_max)
        self.sync_seconds = values.get("time/sync_weight", self.sync_seconds)
        if "time/step" in values:
            newest = values["time/step"]
            before = newest if self.step_seconds is None else self.step_seconds
            self.step_seconds = before + _SMOOTHING * (newest - before)
        dropped = [value for name, value in values.items() if name.startswith("buffer/dropped_")]
        self.dropped = int(sum(dropped)) if dropped else self.dropped

    def _next_stage(self) -> None:
        """What belongs to the stage before is forgotten."""
        self.step = 0
        self.rewards.clear()
        self.held_out.clear()
        self.loss = self.staleness_mean = self.staleness_max = self.sync_seconds = self.step_seconds = None
        self.trainer.tokens_per_s = self.explorer.tokens_per_s = None
        self.dropped = 0
