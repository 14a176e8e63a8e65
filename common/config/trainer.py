"""Sections `trainer`, `buffer` and `checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from common.config.base import ListenAddress, Section
from common.config.model import DeviceConfig


class TrainerConfig(DeviceConfig):
    """The trainer's loop."""

    address: ListenAddress = Field(
        "127.0.0.1:50051", description="host:port that the trainer listens on; port 0 picks one."
    )
    batch_size: int = Field(8, ge=1, description="Groups a step (with `buffer.source: file`: examples a step).")
    total_steps: int | None = Field(None, ge=1, description="None: until the explorers say that nothing more comes.")
    microbatch_tokens: int = Field(
        16384, ge=1, description="Tokens of one forward and backward pass, padding included."
    )
    gradient_checkpointing: bool = Field(False, description="Trade time for activation memory.")
    train_last_partial_batch: bool = Field(True, description="At the data's end, train on what is left.")
    preview: int = Field(0, ge=0, description="Experiences shown in the log a step.")
    peer_timeout: float = Field(120.0, gt=0, description="Seconds without any explorer after which the run fails.")
    min_explorers: int = Field(1, ge=1, description="With fewer explorers connected no step starts.")
    experience_timeout: float = Field(
        3600.0, gt=0, description="Seconds without a new group, explorers being there, after which the run has failed."
    )
    explorer_timeout: float = Field(
        60.0,
        gt=0,
        description="Seconds for which the others wait for an explorer that is away; then its tasks go to them.",
    )


class BufferConfig(Section):
    """Where the trainer's experiences come from."""

    source: Literal["explorers", "file"] = Field("explorers", description="`file`: examples for sft; no explorer runs.")
    path: Path | None = Field(None, description="JSON lines with `prompt` and `response`, for `source: file`.")
    max_groups: int = Field(
        1024, ge=1, description="Groups that wait in the trainer at most; credits hold explorers to it."
    )
    shuffle: bool = Field(True, description="`source: file`: a new order each epoch, from `run.seed`.")
    epochs: int | None = Field(
        None, ge=1, description="`source: file`: passes over the file; None: until `total_steps`."
    )

    @model_validator(mode="after")
    def _file_has_path(self) -> Self:
        if (self.source == "file") != (self.path is not None):
            raise ValueError("`path` belongs to `source: file`, and only to it")
        return self


class CheckpointConfig(Section):
    """What is kept on disk."""

    root: Path | None = Field(
        None,
        description="Folder of the checkpoints; default: RUN/STAGE/checkpoints. `sync.method: checkpoint` shares it.",
    )
    save_interval: int | None = Field(None, ge=1, description="Trainer steps between saves; None: only the final one.")
    save_hf_checkpoint: Literal["always", "last", "never"] = Field(
        "last", description="When a save has the Hugging Face layout (`from_pretrained` opens it)."
    )
    timeout: float = Field(
        1800.0, gt=0, description="Seconds until a save must be durable; a disk that takes longer fails the run."
    )
    keep: int = Field(3, ge=1, description="Newest checkpoints kept; one that somebody reads is never deleted.")
    resume: bool = Field(True, description="Go on from the newest complete checkpoint of this run, if there is one.")
