"""`tandem simulate`: the schedule of a configuration in virtual time, before anything runs.

`python -m common.cli.simulate --draw-docs FOLDER` draws the timelines of docs/architecture.md.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from common.cli.measured_run import read_measured
from common.cli.timeline import draw_timeline
from common.sync.happening import Group
from common.sync.policy import Style, SyncPolicy
from common.sync.simulate import Durations, SimulationResult, simulate

EXIT_DEADLOCK = 1
DAY_SECONDS = 86_400.0

DOCS_DURATIONS = Durations(rollout=1.0, train=0.8, push=0.2, latency=0.02)
DOCS_POLICIES = {
    Style.FIXED: (SyncPolicy(Style.FIXED, offset=1, groups_per_train_step=4, groups_per_explore_step=4), "offset 1"),
    Style.TRAINER_DRIVEN: (
        SyncPolicy(Style.TRAINER_DRIVEN, trainer_interval=2, groups_per_train_step=4, groups_per_explore_step=4),
        "the trainer publishes every 2 steps, the explorer looks after every step",
    ),
    Style.EXPLORER_DRIVEN: (
        SyncPolicy(Style.EXPLORER_DRIVEN, explorer_interval=2, groups_per_train_step=4, groups_per_explore_step=4),
        "the explorer asks every 2 steps",
    ),
    Style.FULLY_ASYNC: (
        SyncPolicy(
            Style.FULLY_ASYNC,
            groups_per_train_step=4,
            groups_per_explore_step=4,
            max_staleness=3,
            max_inflight_batches=2,
        ),
        "2 explore steps in flight, at most 3 steps stale",
    ),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """0: not known."""

    group: float = 0.0
    """Bytes of one group, on its way to the trainer."""
    version: float = 0.0
    """Bytes of one version, on its way to one explorer."""
    tokens: float = 0.0
    """Sampled for one group."""


def simulate_command(
    config: Path,
    overrides: Sequence[str] | None = None,
    *,
    explorers: int | None = None,
    durations: Durations | None = None,
    sizes: Sizes = Sizes(),
    measured: Path | None = None,
    steps: int = 50,
    png: Path | None = None,
    as_json: bool = False,
) -> None:
    """Prints what the schedule of each stage comes to; ends with exit code 1 where one deadlocks.

    `explorers`: None takes those of the configuration. `measured` is the folder of a run from whose metrics durations and sizes are
    taken instead. `steps` are trainer steps; `png` is where the timeline is drawn. `as_json`: one object a stage and line.
    """
    from common.config.describe import explorers as configured_explorers  # noqa: PLC0415 - `--help` is quick
    from common.config.describe import plain_policy  # noqa: PLC0415 - as above
    from common.config.load import load_config  # noqa: PLC0415 - as above
    from common.config.stages import stage_configs  # noqa: PLC0415 - as above

    deadlocked = False
    for stage in stage_configs(load_config(config, overrides or ())):
        if stage.buffer.source == "file":
            if not as_json:
                print(f"{stage.stage_name}: trains on a file, without explorers")
            continue
        # No explorer goes away here: what gets along with repeated windows alone is refused by the services.
        policy = replace(plain_policy(stage), repeats_windows=False)
        count = explorers or configured_explorers(stage)
        total = min(steps, stage.trainer.total_steps or steps)
        if measured is not None:
            run = read_measured(measured, stage.stage_name)
            durations, sizes = run.durations(), Sizes(run.group_bytes, run.version_bytes, run.group_tokens)
        result = simulate(policy, explorers=count, durations=durations or Durations(), total_steps=total)
        deadlocked = deadlocked or result.deadlock is not None
        title = f"{stage.stage_name}: {policy.style.value}, {count} explorer{'s' if count > 1 else ''}"
        if as_json:
            print(json.dumps(as_object(stage.stage_name, count, result, policy, sizes)))
        else:
            print("\n".join([title, *outcome(result, policy, sizes)]))
        if png is not None:
            draw_timeline(result, title, png)
    if deadlocked:
        raise typer.Exit(EXIT_DEADLOCK)


def log_normal(mean: float, spread: float, seed: int = 0) -> Callable[[Group], float]:
    """Durations of rollouts with this mean, and a standard deviation of `spread` times the mean: most are short, some very long."""
    pick = random.Random(seed)
    sigma = math.sqrt(math.log1p(spread * spread))
    return lambda _group: mean * pick.lognormvariate(-sigma * sigma / 2, sigma)


def bytes_a_day(result: SimulationResult, sizes: Sizes) -> tuple[float, float]:
    """Experiences to the trainer, and weights to all explorers."""
    if not result.seconds:
        return 0.0, 0.0
    made = sum(result.staleness.values()) + sum(result.dropped.values())
    return (
        made * sizes.group * DAY_SECONDS / result.seconds,
        len(result.deliveries) * sizes.version * DAY_SECONDS / result.seconds,
    )


def as_object(
    stage: str, explorers: int, result: SimulationResult, policy: SyncPolicy, sizes: Sizes
) -> dict[str, object]:
    """The result for machines."""
    up, down = bytes_a_day(result, sizes)
    return {
        "stage": stage,
        "style": policy.style.value,
        "explorers": explorers,
        "finished": result.finished,
        "deadlock": result.deadlock,
        "steps": result.steps,
        "seconds": result.seconds,
        "groups_per_second": result.groups_per_second,
        "steps_per_second": result.steps / result.seconds if result.seconds else 0.0,
        "tokens_per_second": result.groups_per_second * sizes.tokens,
        "trainer_idle": result.trainer_idle,
        "explorer_idle": result.explorer_idle,
        "max_queued_groups": result.max_queued_groups,
        "staleness": {str(steps): count for steps, count in result.staleness.items()},
        "dropped": dict(result.dropped),
        "experience_bytes_a_day": up,
        "weight_bytes_a_day": down,
    }


def outcome(result: SimulationResult, policy: SyncPolicy, sizes: Sizes = Sizes()) -> list[str]:
    """The result in lines for people."""
    lines = []
    if result.deadlock is not None:
        lines.append(f"  DEADLOCK after {result.steps} trainer steps: {result.deadlock}")
    if result.steps == 0:
        return lines
    steps_per_hour = 3600 * result.steps / result.seconds if result.seconds else 0.0
    lines += [
        f"  {result.steps} trainer steps in {result.seconds:.1f} s: {steps_per_hour:.0f} steps an hour",
        f"  {result.groups_per_second:.2f} groups a second"
        + (f", {result.groups_per_second * sizes.tokens:.0f} sampled tokens a second" if sizes.tokens else ""),
        f"  idle: trainer {result.trainer_idle:.0%}, explorers {result.explorer_idle:.0%}",
        f"  at most {result.max_queued_groups} of {policy.max_queued_groups} groups waited in the trainer",
        f"  staleness: mean {result.mean_staleness:.2f} steps",
    ]
    groups = sum(result.staleness.values())
    for steps, count in result.staleness.items():
        lines.append(f"    {steps:3d} {'#' * max(1, round(40 * count / groups))} {count / groups:.0%}")
    lines += [f"  dropped, {reason}: {count} groups" for reason, count in result.dropped.items()]
    if sizes.group or sizes.version:
        up, down = bytes_a_day(result, sizes)
        lines.append(
            f"  a day: {up / 1e9:.2f} GB of experiences to the trainer, {down / 1e9:.2f} GB of weights to explorers"
        )
    return lines


def draw_docs(folder: Path) -> None:
    """Draws one timeline for each style."""
    folder.mkdir(parents=True, exist_ok=True)
    for style, (policy, words) in DOCS_POLICIES.items():
        result = simulate(policy, durations=DOCS_DURATIONS, total_steps=6)
        draw_timeline(result, f"{style.value}: {words}", folder / f"timeline_{style.value}.png")


def main(arguments: Sequence[str]) -> int:
    """Draws the documentation's pictures."""
    match list(arguments):
        case ["--draw-docs", folder]:
            draw_docs(Path(folder))
            return 0
        case _:
            print("usage: python -m common.cli.simulate --draw-docs FOLDER", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
