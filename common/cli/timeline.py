"""The timeline of a simulated run as a picture: what each side does, on which version, and when versions go over."""

from __future__ import annotations

from pathlib import Path

from common.sync.simulate import Lane, SimulationResult, Span

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
"""One for each version, in turn."""
_LANE_HEIGHT = 0.8
_MOST_EXPLORERS = 8
"""Rows that are drawn."""


def draw_timeline(result: SimulationResult, title: str, file: Path) -> None:
    """Writes the picture; its format is the file's ending (PNG, SVG)."""
    import matplotlib as mpl  # noqa: PLC0415 - it takes half a second to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    explorers = min(len(result.versions), _MOST_EXPLORERS)
    bars = [span for span in result.spans if span.lane is Lane.TRAINER or span.explorer < explorers]
    depths = _depths(bars)
    rows = {
        index: 1 + max((depths[span] for span in bars if span.explorer == index), default=0)
        for index in range(-1, explorers)
    }
    base = {-1: 0.0}
    for index in range(explorers):
        base[index] = base[index - 1] + _LANE_HEIGHT * rows[index - 1] + (0.9 if index == 0 else 0.25)
    end = max((span.end for span in bars), default=1.0)
    figure, axes = plt.subplots(
        figsize=(9.0, 1.3 + 0.42 * (base[explorers - 1] + rows[explorers - 1])), layout="constrained"
    )
    for span in bars:
        bottom = base[span.explorer] + _LANE_HEIGHT * depths[span]
        trainer = span.lane is Lane.TRAINER
        colour = "#d9d9d9" if trainer else _COLOURS[span.version % len(_COLOURS)]
        axes.barh(
            bottom, span.end - span.start, left=span.start, height=0.7, color=colour, edgecolor="white", align="edge"
        )
        label = f"{span.version} → {span.step}" if trainer else f"{span.step} on v{span.version}"
        axes.text(
            (span.start + span.end) / 2,
            bottom + 0.35,
            label,
            ha="center",
            va="center",
            fontsize=7.5,
            color="black" if trainer else "white",
            clip_on=True,
        )
    for delivery in result.deliveries:
        if delivery.explorer < explorers and delivery.version > 0 and delivery.published <= end:
            axes.annotate(
                "",
                xy=(delivery.live, base[delivery.explorer] - 0.04),
                xytext=(delivery.published, 0.74),
                arrowprops={"arrowstyle": "->", "color": _COLOURS[delivery.version % len(_COLOURS)], "lw": 1.3},
            )
    names = {-1: "trainer\nsteps"} | {
        index: "explorer\nsteps" if explorers == 1 else f"explorer {index + 1}" for index in range(explorers)
    }
    axes.set_yticks([base[index] + _LANE_HEIGHT * rows[index] / 2 for index in names], list(names.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, end)
    axes.set_xlabel("virtual seconds")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.savefig(file, dpi=110, metadata={"Software": None} if file.suffix == ".png" else {"Date": None})
    plt.close(figure)


def _depths(bars: list[Span]) -> dict[Span, int]:
    """Explore steps in flight at once lie below each other."""
    free: dict[int, list[float]] = {}
    depths: dict[Span, int] = {}
    for span in sorted(bars, key=lambda bar: (bar.start, bar.step)):
        ends = free.setdefault(span.explorer, [])
        depth = next((index for index, until in enumerate(ends) if until <= span.start + 1e-9), len(ends))
        if depth == len(ends):
            ends.append(0.0)
        ends[depth] = span.end
        depths[span] = depth
    return depths
