"""`tandem up`: starts both services as compose would, shows how they do, and sums up what has come of it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.cli.child import LOG_FOLDER, Child, start_service
from common.cli.display import REFRESH_SECONDS, Display, make_display, say
from common.cli.effective import effective, explorer_target, trainer_target, write_effective
from common.cli.run_view import RunView
from common.cli.summary import StageSummary, stage_records, summarize
from common.cli.supervisor import Failure, Outcome, Patience, Supervisor
from common.cli.watcher import Watcher
from common.cli.words import duration
from common.config.describe import describe_sync
from common.config.load import to_yaml
from common.config.root import TandemConfig
from common.config.security import Role
from common.config.stages import stage_configs
from common.errors import TandemError
from common.rpc.credentials import Caller, CallerCredentials

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run has ended."""

    exit_code: int
    seconds: float
    """From the start of the services to the end of both."""
    summaries: tuple[StageSummary, ...]
    """Of each stage that has run; empty unless the run has finished."""


def run_pair(config: TandemConfig, patience: Patience | None = None) -> RunResult:
    """Runs both services to their end; tells about it on standard output, and of failures on standard error.

    Raises ConfigError for what cannot work, before anything is started.
    """
    stages = stage_configs(config)
    regimes = {stage.stage_name: describe_sync(stage) for stage in stages}
    CallerCredentials(Caller(config.security, Role.OPERATOR))  # who watches the run; refused before anything is started
    config = effective(config)
    path = write_effective(config)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    for name, regime in regimes.items():
        say(console, Text.assemble((f"{name}: " if len(stages) > 1 else "", "bold"), (regime, "dim")))
    say(console, Text(f"logs: {config.run.folder / LOG_FOLDER}    configuration: {path}", style="dim"))
    began = time.monotonic()
    view = RunView(config.run.name, tuple(regimes))
    display = make_display(console)
    try:
        outcome = asyncio.run(_supervise(config, path, view, display, patience or Patience()))
    finally:
        display.close()
    seconds = time.monotonic() - began
    for failure in outcome.failures:
        _tell(failure, errors)
    if outcome.signal is not None:
        again = f"`tandem up {path}` goes on from the newest checkpoint"
        say(errors, Text(f"interrupted after {duration(seconds)}; {again}"))
    if outcome.exit_code != 0:
        return RunResult(outcome.exit_code, seconds, ())
    return RunResult(0, seconds, _sum_up(config, stages, seconds, console, errors))


async def _supervise(config: TandemConfig, path: Path, view: RunView, display: Display, patience: Patience) -> Outcome:
    loop = asyncio.get_running_loop()
    logs = config.run.folder / LOG_FOLDER
    children: list[Child] = []
    try:
        # Before the first channel is opened: a process with gRPC at work should start no others.
        children.extend(start_service(name, path, logs) for name in ("trainer", "explorer"))
        supervisor = Supervisor(children, display.note, patience)
        for number in SIGNALS:
            loop.add_signal_handler(number, supervisor.interrupt, number)
        watcher = Watcher(view, trainer_target(config), explorer_target(config), config.limits, config.security)
        showing = [asyncio.create_task(watcher.run()), asyncio.create_task(_show(view, display, children, supervisor))]
        supervising = asyncio.create_task(supervisor.run())
        try:
            await asyncio.wait({supervising, *showing}, return_when=asyncio.FIRST_COMPLETED)
            if not supervising.done():
                # The display or the watcher raised, which is a bug, or standard output is gone: nobody watches any more.
                supervisor.interrupt(signal.SIGTERM)
            return await supervising
        finally:
            for task in (*showing, supervising):
                task.cancel()
            await asyncio.gather(*showing, supervising, return_exceptions=True)
            for task in showing:
                if not task.cancelled():
                    task.result()
    finally:
        for child in children:
            child.kill()


async def _show(view: RunView, display: Display, children: Sequence[Child], supervisor: Supervisor) -> None:
    while True:
        view.stopping = supervisor.stopping
        for child in children:
            view.side(child.name).exit_code = child.exit_code
        display.show(view)
        await asyncio.sleep(REFRESH_SECONDS)


def _tell(failure: Failure, errors: Console) -> None:
    """Which side failed, how, what it said last, and where there is more."""
    say(errors, Text(f"the {failure.child.name} failed with exit code {failure.exit_code}", style="bold red"))
    for said in failure.lines:
        say(errors, Text(f"  {said}"))
    say(errors, Text(f"  log: {failure.child.log}", style="dim"))


def _sum_up(
    config: TandemConfig, stages: Sequence[TandemConfig], seconds: float, console: Console, errors: Console
) -> tuple[StageSummary, ...]:
    """Prints the table, writes the report, and returns the summaries."""
    # Imported here: matplotlib takes seconds, which nobody should wait for before the run starts.
    from common.cli.report import PAGE_NAME, PLOT_NAME, write_report  # noqa: PLC0415 - see above

    records = [stage_records(stage) for stage in stages]
    summaries = tuple(summarize(stage, found) for stage, found in zip(stages, records, strict=True))
    rows = {"seconds": f"{seconds:.1f}"}
    for summary in summaries:
        prefix = f"{summary.stage}: " if len(summaries) > 1 else ""
        rows |= {f"{prefix}{name}": value for name, value in summary.rows().items()}
    # The stage that explored, if one did: its rewards are what the picture is about.
    shown = max(range(len(stages)), key=lambda index: (stages[index].buffer.source == "explorers", index))
    try:
        write_report(
            config.run.folder,
            records[shown],
            config.run.name if len(stages) == 1 else f"{config.run.name}: {stages[shown].stage_name}",
            rows,
            to_yaml(config),
        )
        rows["report"] = f"{config.run.folder / PAGE_NAME}, {PLOT_NAME}"
    except TandemError as error:
        errors.print(Text(f"no report was written: {error.message}", style="yellow"))
    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    console.print(Text(f"finished in {duration(seconds)}", style="bold green"))
    console.print(table)
    return summaries
