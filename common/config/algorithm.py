"""Section `algorithm`: advantages, loss and optimizer."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from common.config.base import Section


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(1e-6, gt=0, description="Peak learning rate.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's betas.")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Of matrices; vectors (norms, biases) are never decayed.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="After the warm-up; `linear` and `cosine` fall to `min_lr_ratio` at `trainer.total_steps`.",
    )
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="Of `lr`, at the schedule's end.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this global norm.")


class KlConfig(Section):
    """A penalty on the distance to a frozen reference: the model as it was at the stage's start."""

    coefficient: float = Field(0.0, ge=0, description="0 = no reference model at all.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="Schulman's estimators, http://joschu.net/blog/kl-approx.html."
    )


class AlgorithmConfig(Section):
    """A named preset, and what differs from it. Unset keys take the preset's values (see docs/configuration.md)."""

    name: str = Field("grpo", description="A preset: grpo, dr_grpo, reinforce, sft, or one that a plugin registered.")
    advantage: str | None = Field(
        None, description="group_normalized, group_centered, reward, none, or one that a plugin registered."
    )
    policy_loss: str | None = Field(None, description="ppo_clip, reinforce, sft, or one that a plugin registered.")
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] | None = Field(
        None, description="How token losses become one number; means are over the whole batch, not a micro-batch."
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="ppo_clip: ratios below 1 - clip_low gain nothing.")
    clip_high: float = Field(0.2, ge=0, description="ppo_clip: ratios above 1 + clip_high gain nothing.")
    kl: KlConfig = Field(default_factory=KlConfig)
    entropy_coefficient: float = Field(0.0, description="Bonus on the policy's entropy.")
    epochs_per_step: int = Field(1, ge=1, description="Passes over a batch in one step.")
    minibatches: int = Field(1, ge=1, description="Optimizer updates in one pass.")
    max_nonfinite_steps: int = Field(
        3,
        ge=0,
        description="So many steps in a row with a non-finite loss or gradient are skipped; one more ends the run.",
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments for a plugin's parts.")

    @model_validator(mode="after")
    def _finite_window(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.optimizer.betas):
            raise ValueError("`optimizer.betas` must lie in [0, 1)")
        return self
