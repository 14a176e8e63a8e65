"""A run in progress as text: one plain line, or a small picture for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.cli.run_view import RunView, SideView
from common.cli.words import clock, duration, number, rate
from common.status import Wait

SHOWN_AFTER_SECONDS = 2.0
"""A wait that lasts longer is shown: shorter ones are the normal to and fro, and would only flicker."""
_BARS = "▁▂▃▄▅▆▇█"
_BARS_WIDTH = 30


def line(view: RunView, now: float, monotonic: float) -> str:
    """One plain line; `now` in Unix seconds."""
    parts = [clock(monotonic - view.began), *_progress(view), *_versions(view)]
    for name, side in _sides(view):
        speed = f" {rate(side.tokens_per_s)}" if side.tokens_per_s is not None else ""
        parts.append(f"{name} {_state(view, side, monotonic)}{speed}")
    if view.sync_seconds is not None:
        parts.append(f"sync {duration(view.sync_seconds)}")
    if view.queued_groups:
        parts.append(f"queue {view.queued_groups}")
    if view.dropped:
        parts.append(f"dropped {view.dropped}")
    return "  ".join([*parts, *_waits(view, now, monotonic)])


def _progress(view: RunView) -> Iterator[str]:
    if len(view.stages) > 1:
        yield f"stage {view.stage}"
    yield f"step {_steps(view)}"
    if view.rewards:
        yield f"reward {view.rewards[-1]:.3f}"
    elif view.loss is not None:
        yield f"loss {view.loss:.3f}"
    if view.held_out:
        yield f"held-out {view.held_out[-1][1]:.3f}"


def _versions(view: RunView) -> Iterator[str]:
    if view.published is not None:
        applied = "-" if view.explorer.version is None else view.explorer.version
        yield f"version {view.published} published, {applied} applied"
    if view.staleness_mean is not None:
        yield f"staleness {number(view.staleness_mean, 1)}"


def picture(view: RunView, now: float, monotonic: float) -> RenderableType:
    """What stands on a terminal; `now` in Unix seconds."""
    head = Text.assemble(("tandem ", "bold"), (view.name, "bold cyan"))
    if len(view.stages) > 1:
        place = view.stages.index(view.stage) + 1 if view.stage in view.stages else 1
        head.append(f"   stage {view.stage} ({place} of {len(view.stages)})")
    head.append(f"   {clock(monotonic - view.began)}", style="dim")
    remaining = _remaining(view)
    if remaining is not None:
        head.append(f"   about {clock(remaining)} to go", style="dim")
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=view.total or 1, completed=min(view.step, view.total or 0), width=40),
        Text(f"step {_steps(view)}"),
    )
    body = Table.grid(padding=(0, 2))
    body.add_column(style="dim", min_width=9)
    body.add_row("reward", _reward(view))
    if view.held_out:
        body.add_row("held out", _held_out(view))
    for name, side in _sides(view):
        body.add_row(name, _side(view, name, side, monotonic))
    body.add_row("exchange", _exchange(view))
    waits = [Text(f"… {text}", style="yellow") for text in _waits(view, now, monotonic)]
    return Group(head, bar, body, *waits)


def _reward(view: RunView) -> Text:
    if not view.rewards:
        return Text("-" if view.loss is None else f"- (loss {view.loss:.3f})")
    return Text.assemble((f"{view.rewards[-1]:.3f}", "bold green"), f"  {sparkline(view.rewards)}")


def _held_out(view: RunView) -> Text:
    (_, first), (step, last) = view.held_out[0], view.held_out[-1]
    change = f"{first:.3f}" if len(view.held_out) == 1 else f"{first:.3f} → {last:.3f}"
    return Text.assemble((change, "bold green"), (f"   (step {step})", "dim"))


def _side(view: RunView, name: str, side: SideView, monotonic: float) -> Text:
    runs = side.exit_code is None and not side.is_silent(monotonic)
    text = Text(_state(view, side, monotonic), style="" if runs else "yellow")
    if side.reason and runs:
        text.append(f": {side.reason}", style="dim")
    verb, version = ("published", view.published) if name == "trainer" else ("on", side.version)
    if version is not None:
        text.append(f"   {verb} version {version}")
    if side.tokens_per_s is not None:
        text.append(f"   {rate(side.tokens_per_s)}", style="cyan")
    if name == "explorer" and view.explore_step and "explore step" not in side.reason:
        text.append(f"   explore step {view.explore_step}", style="dim")
    return text


def _exchange(view: RunView) -> Text:
    parts = [
        f"staleness {number(view.staleness_mean, 1)} (most {number(view.staleness_max, 0)})",
        f"sync {duration(view.sync_seconds) if view.sync_seconds is not None else '-'}",
        f"queue {view.queued_groups}",
        f"spool {view.spooled}",
    ]
    if view.dropped:
        parts.append(f"dropped {view.dropped}")
    return Text("   ".join(parts))


def sparkline(values: Sequence[float], width: int = _BARS_WIDTH) -> str:
    """A curve of block characters between the smallest and the largest value; means where there are more than fit."""
    points = list(values)
    if len(points) > width:
        edges = [round(index * len(points) / width) for index in range(width + 1)]
        points = [sum(points[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]
    low, high = min(points), max(points)
    span = high - low
    top = len(_BARS) - 1
    return "".join(_BARS[round((point - low) / span * top) if span > 0 else 0] for point in points)


def _sides(view: RunView) -> tuple[tuple[str, SideView], tuple[str, SideView]]:
    return ("trainer", view.trainer), ("explorer", view.explorer)


def _state(view: RunView, side: SideView, monotonic: float) -> str:
    if side.exit_code is not None:
        return "ended" if side.exit_code == 0 else f"ended with exit code {side.exit_code}"
    if side.is_silent(monotonic):
        ends = view.stopping or view.step == view.total
        return f"ending (was {side.state})" if ends else f"does not answer (was {side.state})"
    return side.state


def _steps(view: RunView) -> str:
    return str(view.step) if view.total is None else f"{view.step}/{view.total}"


def _remaining(view: RunView) -> float | None:
    """By the time of the last steps; None before the first ones."""
    few = 3
    if view.stopping or view.total is None or view.step_seconds is None or not few <= view.step < view.total:
        return None
    return (view.total - view.step) * view.step_seconds


def _waits(view: RunView, now: float, monotonic: float) -> Iterator[str]:
    for name, side in _sides(view):
        for wait in side.waits:
            if side.answered_lately(monotonic) and now - wait.since >= SHOWN_AFTER_SECONDS:
                yield f"the {name} waits for {described(wait, now)}"


def described(wait: Wait, now: float) -> str:
    """`an explorer, for 12 s, gives up in 1:48`."""
    until = "" if wait.deadline is None else f", gives up in {duration(wait.deadline - now)}"
    return f"{wait.waiting_for}, for {duration(now - wait.since)}{until}"
