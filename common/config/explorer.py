"""Sections `explorer`, `taskset` and `sampling`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from common.config.base import ListenAddress, PeerAddress, Section
from common.config.model import DeviceConfig


class SamplingConfig(Section):
    """How tokens are drawn."""

    temperature: float = Field(1.0, ge=0, description="0 = greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus; behaviour logprobs are on its support.")
    top_k: int = Field(0, ge=0, description="0 = all.")
    max_tokens: int = Field(256, ge=1, description="Of one response.")
    stop: tuple[str, ...] = Field((), description="Strings that end a response, beside the model's end tokens.")


class TasksetConfig(Section):
    """Where tasks come from and how they are run and scored."""

    name: str = Field("jsonl", description="jsonl, digit_skills, or one that a plugin registered.")
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of that taskset (jsonl: `path`).")
    workflow: str = Field("single_turn", description="single_turn, or one that a plugin registered.")
    workflow_options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the workflow.")
    reward: str = Field(
        "exact_match", description="exact_match, contains, length_words, or one that a plugin registered."
    )
    reward_options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the reward.")
    epochs: int | None = Field(1, ge=1, description="Passes over the taskset; None: for ever.")
    shuffle: bool = Field(True, description="A new order each epoch, from `run.seed`.")


class EvalConfig(Section):
    """Evaluation on held-out tasks."""

    taskset: TasksetConfig | None = Field(None, description="None: no evaluation.")
    interval: int | None = Field(
        None, ge=1, description="Explore steps between evaluations; None: only at start and end."
    )
    at_start: bool = Field(True, description="Evaluate the initial weights.")
    max_tasks: int | None = Field(None, ge=1, description="At most so many tasks; None: all.")
    sampling: SamplingConfig = Field(default_factory=lambda: SamplingConfig(temperature=0.0))


class ExplorerConfig(DeviceConfig):
    """The explorer's loop."""

    id: str = Field("explorer-0", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Unique in a run.")
    address: ListenAddress = Field(
        "127.0.0.1:50052", description="host:port that the explorer listens on; port 0 picks one."
    )
    advertise: PeerAddress | None = Field(
        None, description="host:port at which the trainer reaches it; default: `address`."
    )
    trainer: PeerAddress | None = Field(
        None, description="host:port of a trainer to register with. None: the trainer's config lists this explorer."
    )
    engine: str = Field("torch", description="torch, or one that a plugin registered.")
    batch_size: int = Field(8, ge=1, description="Tasks an explore step.")
    group_size: int = Field(8, ge=1, description="Rollouts a task.")
    max_sequences: int = Field(256, ge=1, description="Sequences decoded together.")
    max_groups_per_batch: int = Field(8, ge=1, description="Finished groups in one message at most.")
    rollout_timeout: float = Field(300.0, gt=0, description="Seconds for one rollout; then it counts as failed.")
    rollout_retries: int = Field(1, ge=0, description="Times that a failed rollout is tried again.")
    on_failed_rollout: Literal["partial", "refill"] = Field(
        "partial",
        description="`partial`: the group goes on without it; `refill`: the group is replaced by the next task's.",
    )
    max_failed_groups: int = Field(32, ge=0, description="So many groups in a row may fail; one more ends the run.")
    send_text: bool = Field(False, description="Send readable text along, for previews.")
    peer_timeout: float = Field(120.0, gt=0, description="Seconds without a trainer after which the run fails.")
    join_timeout: float | None = Field(
        None,
        gt=0,
        description="As `peer_timeout`, for the trainer's first stream; None: `peer_timeout`, and without limit in a stage "
        "behind one that trains on a file.",
    )
    spool_max_bytes: int = Field(
        1 << 30, ge=1 << 16, description="Bytes not acknowledged yet; generation waits above it."
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    evaluation: EvalConfig = Field(default_factory=EvalConfig)
