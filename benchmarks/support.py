"""What the benchmarks share: child processes that report one JSON line each, and a table with a JSON line at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent


@contextmanager
def child(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process of a script in this folder; ended by closing its input, and killed where that is not enough.

    It gets the environment that `prepare_process` would set too late for a process that has imported torch.
    """
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON line of a child. Raises RuntimeError when it ended without one; its error went to our stderr."""
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise RuntimeError(f"{process.args} ended with {process.wait(timeout=10)}")
    values: dict[str, Any] = json.loads(line)
    return values


def result_of(script: str, *arguments: object) -> dict[str, Any]:
    """The JSON line of a child that runs to its end."""
    with child(script, *arguments) as process:
        return said(process)


def say(**values: object) -> None:
    """Of a child: its JSON line."""
    print(json.dumps(values), flush=True)


def until_input_ends() -> None:
    """Of a child that serves: blocks until the parent is done with it, or gone."""
    sys.stdin.read()


def report(title: str, rows: Sequence[tuple[str, str, str]], figures: Mapping[str, float]) -> None:
    """Rows of (what, measured, against what), the machine's load, and the figures as the last line."""
    table = Table(title=title, caption=f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for heading in ("what", "measured", "compared with"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}), flush=True)
