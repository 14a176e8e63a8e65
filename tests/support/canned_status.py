"""Both services with answers that never change, for tests of what shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from protos.tandem.v1 import (
    experience_pb2,
    explorer_pb2,
    explorer_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)

VERSION = experience_pb2.PolicyVersion(run_epoch=2, step=6, manifest_hash="0123456789abcdef")


def trainer_status(now: float | None = None) -> trainer_pb2.TrainerServiceGetStatusResponse:
    """Step 7 of 10, waiting for 5 s, gives up in 25."""
    now = time.time() if now is None else now
    return trainer_pb2.TrainerServiceGetStatusResponse(
        run_name="canned",
        stage="main",
        run_epoch=2,
        state=trainer_pb2.TRAINER_STATE_WAITING_FOR_EXPERIENCES,
        state_since=Timestamp(seconds=int(now - 5)),
        step=7,
        total_steps=10,
        published=VERSION,
        saved_step=5,
        queued_groups=3,
        waits=[
            explorer_pb2.Wait(
                waiting_for="8 groups", since=Timestamp(seconds=int(now - 5)), deadline=Timestamp(seconds=int(now + 25))
            )
        ],
        explorers=[
            trainer_pb2.ExplorerLink(
                explorer_id="explorer-0", address="10.0.0.7:50052", connected=True, applied=VERSION, frontier=4
            )
        ],
        metrics={"reward/mean": 0.5},
        software_version="9.9",
    )


def explorer_status(now: float | None = None) -> explorer_pb2.ExplorerServiceGetStatusResponse:
    now = time.time() if now is None else now
    return explorer_pb2.ExplorerServiceGetStatusResponse(
        explorer_id="explorer-0",
        run_name="canned",
        stage="main",
        state=explorer_pb2.EXPLORER_STATE_WAITING_FOR_SYNC,
        state_since=Timestamp(seconds=int(now - 3)),
        reason="a version after 6",
        policy_version=VERSION,
        explore_step=8,
        batches_spooled=2,
        last_sequence=9,
        frontier=7,
        metrics={"throughput/rollout_tokens_per_s": 1234.0},
        software_version="9.9",
    )


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    def GetStatus(self, request: Any, context: Any) -> trainer_pb2.TrainerServiceGetStatusResponse:  # noqa: N802
        return trainer_status()

    def WatchMetrics(self, request: Any, context: Any) -> Iterator[trainer_pb2.WatchMetricsResponse]:  # noqa: N802
        """One record of each side, then the end, as at the end of a stage."""
        yield trainer_pb2.WatchMetricsResponse(
            step=7, source="trainer", values={"reward/mean": 0.5, "throughput/train_tokens_per_s": 4321.0}
        )
        yield trainer_pb2.WatchMetricsResponse(step=7, source="explorer-0", values={"eval/reward_mean": 0.625})


class ExplorerServicer(explorer_pb2_grpc.ExplorerServiceServicer):
    def GetStatus(self, request: Any, context: Any) -> explorer_pb2.ExplorerServiceGetStatusResponse:  # noqa: N802
        return explorer_status()


def add(servicer: TrainerServicer | ExplorerServicer, server: Any) -> None:
    """Registers either."""
    if isinstance(servicer, TrainerServicer):
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)
    else:
        explorer_pb2_grpc.add_ExplorerServiceServicer_to_server(servicer, server)
