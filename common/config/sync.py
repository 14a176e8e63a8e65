"""Section `sync`: when the two sides exchange weights, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from common.config.base import Section
from common.sync.policy import Method, Style


class SyncConfig(Section):
    """See docs/architecture.md for the four styles drawn as timelines."""

    style: Style = Field(Style.FIXED, description="Who decides: fixed, trainer_driven, explorer_driven, fully_async.")
    method: Method = Field(Method.SHARDS, description="`shards`: over gRPC; `checkpoint`: by shared storage.")
    interval: int = Field(1, ge=1, description="Default of the two below.")
    trainer_interval: int | None = Field(None, ge=1, description="T: trainer steps between publications.")
    explorer_interval: int | None = Field(None, ge=1, description="M: explore steps between sync boundaries.")
    offset: int = Field(0, ge=0, description="n: explore steps that the explorer may be ahead.")
    max_staleness: int | None = Field(
        None,
        ge=0,
        description="Steps; what is older when its turn comes is dropped and counted, after credits have paced the explorers.",
    )
    wait_for_slow: bool = Field(
        True,
        description="With `max_staleness`: a step waits for rollouts that would be too stale after it, so that slow, long ones are trained as often as others. False: they are dropped.",
    )
    max_inflight_batches: int = Field(2, ge=1, description="fully_async: explore steps in flight at once.")
    timeout: float = Field(600.0, gt=0, description="Seconds that a wait for the other side's part of a sync may last.")
    chunk_bytes: int = Field(2 << 20, ge=4096, le=16 << 20, description="Bytes of weights a message.")
    delta: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: each push sends the full version or only what changed, whichever is faster; `off`: always in full.",
    )
    delta_history_bytes: int = Field(
        4 << 30,
        ge=0,
        description="Memory for earlier versions that deltas are made from, and for the deltas; below the size of one version there are no deltas.",
    )
