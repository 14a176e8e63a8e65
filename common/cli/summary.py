"""What a run has come to, read from the metrics that its stages left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.cli.words import number, rate
from common.config.root import TandemConfig
from common.config.stages import result_folder
from common.errors import MalformedData
from common.monitor.build import metrics_folder
from common.monitor.jsonl import read_records
from common.monitor.sink import MetricRecord

_EXPLORED = ("explore/policy_version", "eval/policy_version", "sync/applied_version")
"""Metrics that name a version which an explorer ran on."""


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage. None where nothing was measured."""

    stage: str
    steps: int
    reward_first: float | None
    reward_last: float | None
    held_out_start: float | None
    """`eval/reward_mean` of the first evaluation."""
    held_out_end: float | None
    published: int | None
    """Step of the newest version; the final one is published after the last step's record, so explorers' count too."""
    explorer_versions: int
    """Different policy versions that explorers ran rollouts on, the initial weights among them."""
    train_tokens_per_s: float | None
    """Mean over the steps."""
    rollout_tokens_per_s: float | None
    """Mean over the explore steps."""
    staleness_mean: float | None
    staleness_max: float | None
    dropped: int
    """Groups."""
    result: Path | None
    """The finished model; None when there is none (yet)."""

    def rows(self) -> dict[str, str]:
        """For people: what was measured, by name."""
        rows = {"steps": str(self.steps)}
        if self.reward_first is not None:
            rows["reward, first and last step"] = f"{number(self.reward_first, 3)} → {number(self.reward_last, 3)}"
        if self.held_out_start is not None:
            rows["held-out reward, start and end"] = (
                f"{number(self.held_out_start, 3)} → {number(self.held_out_end, 3)}"
            )
        if self.published is not None:
            rows["policy versions"] = f"{self.published} published last, {self.explorer_versions} explored with"
        rows["trainer, mean"] = rate(self.train_tokens_per_s)
        if self.rollout_tokens_per_s is not None:
            rows["explorer, mean"] = rate(self.rollout_tokens_per_s)
        if self.staleness_mean is not None:
            rows["staleness, mean and most"] = f"{number(self.staleness_mean)}, {number(self.staleness_max, 0)} steps"
            rows["groups dropped"] = str(self.dropped)
        rows["result"] = str(self.result) if self.result is not None else "none"
        return rows


def stage_records(config: TandemConfig) -> list[MetricRecord]:
    """The trainer's metrics of one stage, explorers' among them; empty where it has left none, or keeps no JSON lines."""
    try:
        return read_records(metrics_folder(config) / "trainer.jsonl")
    except (FileNotFoundError, MalformedData):
        return []


def summarize(config: TandemConfig, records: Sequence[MetricRecord]) -> StageSummary:
    """The summary of one stage's configuration and records."""
    # Imported here: matplotlib takes seconds, which nobody should wait for before a run starts.
    from common.cli.plot import HELD_OUT_REWARD, PUBLISHED, STALENESS, TRAINING_REWARD, curve  # noqa: PLC0415 - see above

    own = [record for record in records if record.source == "trainer"]
    explorers = [record for record in records if record.source != "trainer"]
    reward = curve(own, TRAINING_REWARD).values
    held_out = curve(explorers, HELD_OUT_REWARD).values
    explored = _versions(records)
    published = [int(value) for value in curve(own, PUBLISHED).values]
    result = result_folder(config)
    return StageSummary(
        stage=config.stage_name,
        steps=max((record.step for record in own), default=0),
        reward_first=_first(reward),
        reward_last=_last(reward),
        held_out_start=_first(held_out),
        held_out_end=_last(held_out),
        published=max(*published, *explored) if published else None,
        explorer_versions=len(explored),
        train_tokens_per_s=_mean(curve(own, "throughput/train_tokens_per_s").values),
        rollout_tokens_per_s=_mean(_values(explorers, "throughput/rollout_tokens_per_s")),
        staleness_mean=_mean(curve(own, STALENESS).values),
        staleness_max=max(curve(own, "sample/staleness_max").values, default=None),
        dropped=_dropped(own),
        result=result if result.is_dir() else None,
    )


def _versions(records: Iterable[MetricRecord]) -> set[int]:
    return {
        int(record.values[name])
        for record in records
        for name in _EXPLORED
        if name in record.values and record.values[name] >= 0  # false for NaN
    }


def _dropped(records: Sequence[MetricRecord]) -> int:
    """The counters of the newest record that has some."""
    for record in reversed(records):
        counts = [value for name, value in record.values.items() if name.startswith("buffer/dropped_")]
        if counts:
            return int(sum(counts))
    return 0


def _values(records: Iterable[MetricRecord], name: str) -> list[float]:
    return [value for record in records if (value := record.values.get(name, -1.0)) >= 0]


def _first(values: Sequence[float]) -> float | None:
    return values[0] if values else None


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
