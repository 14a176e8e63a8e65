"""Section `model`: what is trained, and on what numbers."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from common.config.base import Section


class ModelConfig(Section):
    """The policy. Give `path`, or `architecture` for a model that is made at start."""

    path: str | None = Field(
        None,
        description="A local Hugging Face folder, a hub id, or `package:NAME/FOLDER` for a model inside a Python package.",
    )
    architecture: dict[str, Any] | None = Field(
        None,
        description="Arguments of a `transformers` config (`model_type: llama, hidden_size: ...`): a random model of it is made at start from `run.seed`.",
    )
    tokenizer: str | None = Field(
        None,
        description="As `path`, or `characters:ABC...` for one token a character. Default: the model's own.",
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Of the trainer's master weights.")
    rollout_dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Of the weights that are published and rolled out; default: `dtype`."
    )
    max_length: int = Field(1024, gt=1, description="Tokens of prompt and response together.")
    trust_remote_code: bool = Field(False, description="Run code that a model's folder brings along.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.architecture is None):
            raise ValueError("give exactly one of `path` and `architecture`")
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("`architecture` needs a `tokenizer`")
        return self


class DeviceConfig(Section):
    """Where one side computes."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: cuda when there is one.")
    autocast: bool = Field(False, description="bfloat16 autocast of the forward pass.")
    tf32: bool = Field(True, description="Allow TF32 matrix products on CUDA.")
    threads: int | None = Field(
        None, ge=1, description="Threads of torch on the CPU; default: this process's fair share of the cores."
    )
