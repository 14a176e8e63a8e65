"""What is logged of one step, beside what the engine reports."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer_service.buffer.source import Sample
from trainer_service.engine.base import StepResult


def sample_metrics(sample: Sample, step: int) -> dict[str, float]:
    """Rewards, lengths and staleness of the experiences that step number `step` trained on."""
    if not sample.groups:
        return {"sample/sequences": float(sample.batch.rewards.numel()), "time/sample": sample.wait_seconds}
    rewards = sample.batch.rewards.numpy()
    oldest = np.concatenate([group.columns.oldest_versions for group in sample.groups])
    newest = np.concatenate([group.columns.newest_versions for group in sample.groups])
    staleness = step - 1 - oldest
    lengths = np.diff(sample.batch.token_offsets.numpy()) - sample.batch.prompt_lengths.numpy()
    group_stds = [float(np.std(group.columns.rewards)) for group in sample.groups]
    metrics = {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/max": float(rewards.max()),
        "reward/groups_without_signal": float(np.mean([std == 0 for std in group_stds])),
        "sample/staleness_mean": float(staleness.mean()),
        "sample/staleness_max": float(staleness.max()),
        "sample/spans_updates": float((newest > oldest).mean()),
        "sample/response_tokens_mean": float(lengths.mean()),
        "sample/response_tokens_max": float(lengths.max()),
        "sample/truncated": float(np.mean(np.concatenate([group.columns.truncated for group in sample.groups]))),
        "sample/groups": float(len(sample.groups)),
        "sample/sequences": float(rewards.size),
        "sample/failed_rollouts": float(sum(group.failed_rollouts for group in sample.groups)),
        "time/sample": sample.wait_seconds,
    }
    names = {name for group in sample.groups for name in group.metrics}
    for name in sorted(names):
        values = [group.metrics[name] for group in sample.groups if name in group.metrics]
        metrics[f"rollout/{name}"] = float(np.mean(values))
    return metrics


def step_metrics(
    sample: Sample,
    of_sample: Mapping[str, float],
    result: StepResult,
    *,
    train_seconds: float,
    loop_seconds: float,
) -> dict[str, float]:
    """Everything of one step. `of_sample` is from `sample_metrics`, `loop_seconds` the time since the last step's end."""
    tokens = sample.batch.tokens.numel()
    ours: Mapping[str, float] = {
        **of_sample,
        "time/train_step": train_seconds,
        "time/step": loop_seconds,
        "throughput/train_tokens_per_s": tokens / max(loop_seconds, 1e-9),
        "step/applied": float(result.applied),
    }
    return {**result.metrics, **ours}
