"""The picture of a run: reward by trainer step, and how far the rollouts' weights lagged."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common.monitor.sink import MetricRecord

TRAINING_REWARD = "reward/mean"
HELD_OUT_REWARD = "eval/reward_mean"
STALENESS = "sample/staleness_mean"
PUBLISHED = "sync/published_version"
APPLIED = "sync/applied_version"

_BLUE, _ORANGE, _GREY, _INK = "#2563eb", "#ea580c", "#98a2b3", "#1f2430"
_SMOOTH_FROM = 30
"""Steps from which the single values are drawn faint, under a moving mean."""
_WINDOW_PART = 15
"""The mean runs over a fifteenth of all steps: enough to see the trend, too few to hide a collapse."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric by step."""

    steps: Sequence[int]
    values: Sequence[float]


def curve(records: Iterable[MetricRecord], name: str) -> Curve:
    """A metric by step, over all sources; of several values at one step (a run that resumed) the newest counts."""
    newest: dict[int, tuple[float, float]] = {}
    for record in records:
        value = record.values.get(name, math.nan)
        if math.isfinite(value) and record.time >= newest.get(record.step, (-math.inf, 0.0))[0]:
            newest[record.step] = (record.time, value)
    return Curve(sorted(newest), [newest[step][1] for step in sorted(newest)])


def plot(records: Sequence[MetricRecord], title: str) -> bytes:
    """The picture as PNG bytes."""
    figure = Figure(figsize=(9.6, 5.6), dpi=150, layout="constrained")
    reward, lag = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw_rewards(reward, records)
    _draw_lag(lag, records)
    reward.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, parse_math=False)
    lag.set_xlabel("trainer step")
    lag.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (reward, lag):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_GREY)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(axis="y", color="#eaecf0", linewidth=0.8)
        axes.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_rewards(axes: Axes, records: Sequence[MetricRecord]) -> None:
    training, held_out = curve(records, TRAINING_REWARD), curve(records, HELD_OUT_REWARD)
    many = len(training.steps) >= _SMOOTH_FROM
    if training.steps:
        marker = "." if len(training.steps) == 1 else None
        label = None if many else "training"
        axes.plot(
            training.steps,
            training.values,
            color=_BLUE,
            alpha=0.25 if many else 1,
            linewidth=1.5,
            marker=marker,
            label=label,
        )
    if many:
        window = max(3, len(training.values) // _WINDOW_PART)
        axes.plot(training.steps, _moving_mean(training.values, window), color=_BLUE, linewidth=2, label="training")
    if held_out.steps:
        axes.plot(
            held_out.steps,
            held_out.values,
            color=_ORANGE,
            linewidth=1.2,
            linestyle="--",
            marker="o",
            markersize=6,
            label="held out",
        )
        ends = {held_out.steps[0]: held_out.values[0], held_out.steps[-1]: held_out.values[-1]}
        for step, value in ends.items():
            axes.annotate(
                f"{value:.2f}",
                (step, value),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                color=_ORANGE,
            )
    values = [*training.values, *held_out.values]
    if values and min(values) >= 0 and max(values) <= 1:
        axes.set_ylim(0, 1.09)
    axes.set_ylabel("reward")
    if values:
        axes.legend(loc="lower right", frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no rewards were logged", transform=axes.transAxes, ha="center", color=_GREY)


def _draw_lag(axes: Axes, records: Sequence[MetricRecord]) -> None:
    staleness = curve(records, STALENESS)
    if staleness.steps:
        axes.plot(staleness.steps, staleness.values, color=_INK, linewidth=1.2)
        axes.set_ylabel("staleness\n(steps)")
    else:
        published, applied = curve(records, PUBLISHED), curve(records, APPLIED)
        for version, color, label in ((published, _BLUE, "published"), (applied, _ORANGE, "applied")):
            if version.steps:
                axes.step(version.steps, version.values, where="post", color=color, linewidth=1.2, label=label)
        axes.set_ylabel("policy\nversion")
        if published.steps or applied.steps:
            axes.legend(loc="lower right", frameon=False, fontsize=8)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))


def _moving_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean over a window centred on each value, shorter at the ends."""
    half = window // 2
    means = []
    for index in range(len(values)):
        part = values[max(0, index - half) : index + half + 1]
        means.append(sum(part) / len(part))
    return means
