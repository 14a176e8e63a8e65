"""The whole configuration, and its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from common.config.algorithm import AlgorithmConfig
from common.config.base import PeerAddress, Section
from common.config.explorer import ExplorerConfig, TasksetConfig
from common.config.model import ModelConfig
from common.config.security import SecurityConfig, open_door
from common.config.sync import SyncConfig
from common.config.trainer import BufferConfig, CheckpointConfig, TrainerConfig

_MESSAGE_OVERHEAD = 4096
"""Bytes of a message beside its bulk field: a few numbers and short texts."""


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field(
        "run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Folder of the run below `root`."
    )
    root: Path = Field(Path("runs"), description="Folder of all runs.")
    seed: int = Field(0, ge=0, description="Of everything random.")
    deterministic: bool = Field(
        False,
        description="Two runs end with the same weights to the bit, also when they were killed and went on. Needs `sync.style: fixed` and one explorer; decodes one group at a time.",
    )

    @property
    def folder(self) -> Path:
        """Where everything of this run lies."""
        return self.root / self.name


class LimitsConfig(Section):
    """What a peer may send; anything above is refused before memory is taken for it."""

    message_bytes: int = Field(32 << 20, ge=1 << 20, le=512 << 20, description="Bytes of one gRPC message.")
    manifest_tensors: int = Field(20_000, ge=1, description="Tensors of one version.")
    weights_bytes: int = Field(64 << 30, ge=1, description="Bytes of one version.")
    batch_experiences: int = Field(8192, ge=1, description="Experiences of one batch.")
    experience_tokens: int = Field(1 << 20, ge=2, description="Tokens of one experience.")
    streams: int = Field(64, ge=1, description="Calls served at once, to each role.")


class MonitorConfig(Section):
    """Logs and metrics."""

    sinks: tuple[str, ...] = Field(
        ("jsonl", "tensorboard"), description="jsonl, tensorboard, or ones that a plugin registered."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Of the structured log.")
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="`auto`: console on a terminal, else JSON."
    )


class ExplorerAddress(Section):
    """An explorer that the trainer dials."""

    address: PeerAddress = Field(description="host:port.")


class TandemConfig(Section):
    """One file for both services."""

    run: RunConfig = Field(default_factory=RunConfig)
    model: ModelConfig
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    sync: SyncConfig = Field(default_factory=SyncConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    buffer: BufferConfig = Field(default_factory=BufferConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    explorer: ExplorerConfig = Field(default_factory=ExplorerConfig)
    explorers: tuple[ExplorerAddress, ...] = Field((), description="Explorers that the trainer dials; others register.")
    taskset: TasksetConfig = Field(default_factory=TasksetConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    security: SecurityConfig = Field(default_factory=SecurityConfig)
    plugins: tuple[str, ...] = Field((), description="Python modules to import first; they register parts of your own.")
    stages: tuple[dict[str, Any], ...] = Field(
        (),
        description="Run one after the other. Each has a `name` and overrides keys of this file; unless it sets `model.path`, it starts from the result of the one before.",
    )
    stage_name: str = Field(
        "main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Set by the stage that runs."
    )

    @model_validator(mode="after")
    def _sides_fit(self) -> Self:
        if self.buffer.source == "file" and self.trainer.total_steps is None and self.buffer.epochs is None:
            raise ValueError("`buffer.source: file` needs `trainer.total_steps` or `buffer.epochs`, else it never ends")
        if self.explorer.group_size > self.limits.batch_experiences:
            raise ValueError(
                f"`explorer.group_size` {self.explorer.group_size} is over `limits.batch_experiences` "
                f"{self.limits.batch_experiences}: a group travels whole, so none could be sent"
            )
        if self.sync.chunk_bytes + _MESSAGE_OVERHEAD > self.limits.message_bytes:
            raise ValueError(
                f"`sync.chunk_bytes` {self.sync.chunk_bytes} does not fit into a message of `limits.message_bytes` "
                f"{self.limits.message_bytes} (less {_MESSAGE_OVERHEAD} for its other fields)"
            )
        return self

    @model_validator(mode="after")
    def _one_explorer_if_deterministic(self) -> Self:
        explorers = max(len(self.explorers), self.trainer.min_explorers)
        if self.run.deterministic and self.buffer.source == "explorers" and explorers > 1:
            raise ValueError(
                f"`run.deterministic: true` allows one explorer, and there are {explorers} (`explorers`, "
                "`trainer.min_explorers`): which of several makes a task depends on who is faster"
            )
        return self

    @model_validator(mode="after")
    def _no_door_is_open(self) -> Self:
        for key, address in (("trainer.address", self.trainer.address), ("explorer.address", self.explorer.address)):
            refused = open_door(key, address, self.security)
            if refused is not None:
                raise ValueError(refused)
        return self

    @model_validator(mode="after")
    def _trains_on_the_support_it_samples_from(self) -> Self:
        sampling = self.explorer.sampling
        if self.buffer.source == "explorers" and (sampling.top_p < 1 or sampling.top_k > 0):
            raise ValueError(
                "`explorer.sampling`: the trainer compares logprobs on the whole vocabulary, so top_p must be 1 and top_k 0 "
                "(a truncated support would bias every ratio); they are free under `explorer.evaluation.sampling`"
            )
        return self

    @property
    def stage_folder(self) -> Path:
        """Where everything of the current stage lies."""
        return self.run.folder / self.stage_name

    @property
    def checkpoint_root(self) -> Path:
        """Where the current stage's checkpoints lie."""
        return self.checkpoint.root or self.stage_folder / "checkpoints"
