"""The command line of the two services: `python -m trainer_service`, `python -m explorer_service`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from common import __version__
from common.config.load import load_config
from common.errors import ConfigError
from common.service import EXIT_BAD_CONFIG, RunStage, run_service

ABOUT = {
    "trainer": (
        "The trainer: pulls experiences from the explorers, trains, and publishes weights.\n\n"
        "It listens on `trainer.address` (for `tandem status`, grpcurl, and explorers that register), and dials the "
        "explorers that `explorers` lists. It goes on from the newest complete checkpoint of the run, if there is one."
    ),
    "explorer": (
        "The explorer: runs tasks with the policy, scores them, and serves the experiences to the trainer.\n\n"
        "It listens on `explorer.address`, and registers with `explorer.trainer` when that is set. What is not "
        "acknowledged yet lies in its spool, so a restart loses nothing."
    ),
}
EXITS = (
    "Exit codes: 0 finished; 1 failed (the cause is the last line of the log); 2 bad configuration; "
    "130 or 143 after SIGINT or SIGTERM and a clean drain (a second signal ends it at once)."
)


def service_command(service: Literal["trainer", "explorer"], run_stage: RunStage) -> None:
    """Parses the command line, runs the service, and exits with its code."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)

    @app.command(help=f"{ABOUT[service]}\n\n{EXITS}")
    def run(
        config: Annotated[
            Path | None, typer.Option("--config", "-c", help="YAML file; see docs/configuration.md for every key.")
        ] = None,
        overrides: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="KEY=VALUE",
                help="Overrides one key, e.g. `--set trainer.batch_size=16`; may be repeated. Stronger than the "
                "environment (`TANDEM__TRAINER__BATCH_SIZE=16`), which is stronger than the file.",
            ),
        ] = None,
        version: Annotated[bool, typer.Option("--version", help="Prints the version, and ends.")] = False,
    ) -> None:
        if version:
            typer.echo(__version__)
            return
        try:
            loaded = load_config(config, overrides or ())
        except ConfigError as error:
            typer.echo(f"{service}: {error.message}", err=True)
            raise typer.Exit(EXIT_BAD_CONFIG) from None
        raise typer.Exit(run_service(service, loaded, run_stage))

    app(prog_name=f"tandem-{service}" if sys.argv[0].endswith(f"tandem-{service}") else f"python -m {service}_service")
