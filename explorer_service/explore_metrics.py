"""What is measured of exploring, a record an explore step."""

from __future__ import annotations

import time

from common.experience.experience import ExperienceGroup
from common.monitor.monitor import Monitor
from common.wire.versions import version_to_proto
from explorer_service.engine.base import RolloutEngine
from explorer_service.experience_stream import ExperienceStream
from explorer_service.spool_thread import SpoolThread
from explorer_service.weight_intake import WeightIntake
from protos.tandem.v1 import explorer_pb2


class ExploreMetrics:
    """Counts groups, and logs a record whenever an explore step has ended: here, and to the trainer."""

    def __init__(
        self,
        explorer_id: str,
        engine: RolloutEngine,
        weights: WeightIntake,
        spool: SpoolThread,
        stream: ExperienceStream,
        monitor: Monitor,
    ) -> None:
        self._explorer_id = explorer_id
        self._engine = engine
        self._weights = weights
        self._spool = spool
        self._stream = stream
        self._monitor = monitor
        self._step = 0
        self._rewards: list[float] = []
        self._group_seconds: list[float] = []
        self._bytes = 0
        self._failed_groups = 0
        self._failed_rollouts = 0
        self._since = time.monotonic()
        self._tokens = 0
        self._decode_seconds = 0.0

    def start(self, explore_step: int) -> None:
        """Exploring begins (again) after this explore step."""
        self._step = explore_step
        self._since = time.monotonic()

    def count_group(self, group: ExperienceGroup, seconds: float) -> None:
        """A group was spooled, so long after it was begun."""
        self._group_seconds.append(seconds)
        self._rewards.extend(experience.reward for experience in group.experiences)
        self._failed_rollouts += group.failed_rollouts

    def count_bytes(self, size: int) -> None:
        """A batch of so many bytes was spooled."""
        self._bytes += size

    def count_failed_group(self) -> None:
        """A task gave no group."""
        self._failed_groups += 1

    def end_step(self, explore_step: int) -> None:
        """Logs what was counted since the step before ended."""
        now = time.monotonic()
        statistics = self._engine.statistics()
        tokens = statistics.generated_tokens - self._tokens
        busy = statistics.decode_seconds - self._decode_seconds
        values = {
            "explore/step": float(explore_step),
            "explore/policy_version": float(self._weights.live.step),
            "explore/failed_groups": float(self._failed_groups),
            "explore/failed_rollouts": float(self._failed_rollouts),
            "explore/tokens": float(tokens),
            "explore/groups": float(len(self._group_seconds)),
            "explore/bytes": float(self._bytes),
            "spool/batches": float(self._spool.counters.pending_batches),
            "spool/bytes": float(self._spool.counters.pending_bytes),
            "time/explore_step": now - self._since,
            "time/decode": busy,
            "throughput/rollout_tokens_per_s": tokens / max(now - self._since, 1e-9),
            "throughput/decode_tokens_per_s": tokens / max(busy, 1e-9),
        }
        if self._rewards:
            values["explore/reward_mean"] = sum(self._rewards) / len(self._rewards)
        if self._group_seconds:
            values["time/group_mean"] = sum(self._group_seconds) / len(self._group_seconds)
            values["time/group_max"] = max(self._group_seconds)
        self._group_seconds, self._bytes = [], 0
        self._step = explore_step
        self._since, self._tokens, self._decode_seconds = now, statistics.generated_tokens, statistics.decode_seconds
        self._rewards = []
        self.log(values)

    def log(self, values: dict[str, float]) -> None:
        """Logs a record at the present explore step."""
        self._monitor.log(self._step, time.time(), self._explorer_id, values)
        self._stream.send_metrics(
            explorer_pb2.ExplorerMetrics(
                explore_step=self._step, policy_version=version_to_proto(self._weights.live), values=values
            )
        )
