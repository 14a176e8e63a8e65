"""What a run leaves for people: `reward.png` and `report.html` in its folder."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

import jinja2

from common.cli.plot import plot
from common.errors import StorageFailed
from common.monitor.sink import MetricRecord

PLOT_NAME = "reward.png"
PAGE_NAME = "report.html"
_TEMPLATE = "report.html.j2"


def write_report(
    run_folder: Path,
    records: Iterable[MetricRecord],
    title: str,
    summary: Mapping[str, object],
    config: str | None = None,
) -> None:
    """Writes the plot of the reward, and a page that needs nothing beside itself.

    `config` is the effective configuration as YAML, shown folded. Raises StorageFailed where the folder cannot be written.
    """
    kept = list(records)
    picture = plot(kept, title)
    page = (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            title=title,
            plot=base64.b64encode(picture).decode(),
            records=len(kept),
            last_step=max((record.step for record in kept), default=None),
            summary=[(name, _shown(value)) for name, value in summary.items()],
            config=config,
        )
    )
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
        (run_folder / PLOT_NAME).write_bytes(picture)
        (run_folder / PAGE_NAME).write_text(page, encoding="utf-8")
    except OSError as error:
        raise StorageFailed(f"report in {run_folder}: {error.strerror}", path=run_folder) from error


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("common.cli", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def _shown(value: object) -> str:
    """Numbers to four digits; everything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    return str(value)
