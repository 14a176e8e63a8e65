"""The `tandem` command line. What a command needs is imported when it runs, so that `tandem --help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from common import __version__

app = typer.Typer(
    name="tandem",
    help="Reinforcement fine-tuning of language models as a pair of gRPC services, a trainer and an explorer.\n\n"
    "`tandem demo` shows what it does, in about a minute. `tandem up CONFIG` runs both services on this machine; on "
    "several, start `python -m trainer_service --config FILE` and `python -m explorer_service --config FILE` there.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2
EXIT_INTERRUPTED = 130

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrides one key, the value in YAML: `--set trainer.batch_size=16`, for one stage `--set "
        "stages.sft.trainer.total_steps=5`. May be repeated. Stronger than the environment "
        "(`TANDEM__TRAINER__BATCH_SIZE=16`), which is stronger than the file.",
    ),
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file; every key is in docs/configuration.md.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _tandem(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version, and ends.")
    ] = False,
) -> None:
    pass


@app.command()
def up(
    config: ConfigFile,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; as `--set run.name=NAME`.")] = None,
) -> None:
    """Runs a trainer and an explorer on this machine, to the end of the run.

    Both are child processes, `python -m trainer_service` and `python -m explorer_service`, on the same effective
    configuration: it is written to `RUN/config.yaml`, with a free port wherever the port is 0, and with the explorer
    listed for the trainer where `explorers` is empty. Their logs are in `RUN/logs`. A run that was interrupted goes on from its newest
    checkpoint when it is started again.

    Ctrl-C (or SIGTERM) lets both finish what they are doing and save; a second one kills them.
    Afterwards `RUN/report.html` and `RUN/reward.png` show the run.

    Exit codes: 0 finished; 2 bad configuration; 130 or 143 after SIGINT or SIGTERM; otherwise that of the service
    that failed first.

    For example:

    - `tandem up run.yaml`

    - `tandem up run.yaml --name second-try --set algorithm.optimizer.lr=2e-6 --set sync.style=fully_async`
    """
    from common.cli.up import run_pair  # noqa: PLC0415 - see the module's docstring
    from common.config.load import load_config  # noqa: PLC0415 - as above

    loaded = load_config(config, _with_name(overrides, name))
    raise typer.Exit(run_pair(loaded).exit_code)


@app.command()
def demo(
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            help="Starts from random weights: supervised fine-tuning first (stage `sft`), then GRPO (stage `grpo`).",
        ),
    ] = False,
    name: Annotated[
        str, typer.Option(help="Name of the run; the next free NAME-2, NAME-3, ... if it exists.")
    ] = "demo",
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random; as `--set run.seed=N`.")] = None,
) -> None:
    """Teaches a small language model to follow instructions, on this machine, in about a minute.

    Nothing is downloaded: model, tasks and configuration come with the package. It runs as `tandem up` runs any
    configuration, on free ports.

    The last line of standard output is one JSON object: `held_out_start` and `held_out_end`, the accuracy on held-out tasks
    before and after (mean reward, greedy decoding); `seconds`, wall time of both services; `trainer_steps`, optimizer
    steps of the last stage; `explorer_versions`, the number of different policy versions that the explorer ran on, the
    initial weights among them; `result`, the folder of the trained model in the Hugging Face layout.

    For example:

    - `tandem demo`

    - `tandem demo --from-scratch --seed 7`

    - `tandem demo --set sync.style=fully_async | tail -n 1`
    """
    from common.cli.demonstration import run_demo  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(run_demo(name, overrides or (), seed, from_scratch=from_scratch))


@app.command()
def check(config: ConfigFile, overrides: Overrides = None) -> None:
    """Checks a configuration, and shows what it comes to, without running anything.

    Prints the sync regime of every stage in words, as comments, and the effective configuration with all defaults: the
    output is valid YAML, which `tandem up` would take. Exit code 2, and a line for each problem, when it cannot work.

    For example:

    - `tandem check run.yaml`

    - `tandem check run.yaml --set sync.style=fully_async --set sync.max_staleness=4`
    """
    from common.cli.check import checked  # noqa: PLC0415 - see the module's docstring
    from common.config.load import load_config  # noqa: PLC0415 - as above

    print(checked(load_config(config, overrides or ())), end="")


@app.command()
def simulate(  # noqa: PLR0917 - one argument an option
    config: ConfigFile,
    overrides: Overrides = None,
    explorers: Annotated[
        int | None, typer.Option(min=1, help="Explorers; default: those of the configuration.")
    ] = None,
    rollout_seconds: Annotated[float, typer.Option(min=0.0, help="Of one group; the mean, with a spread.")] = 1.0,
    rollout_spread: Annotated[
        float, typer.Option(min=0.0, help="Standard deviation / mean of the rollouts, log-normal: 1 is a long tail.")
    ] = 0.0,
    train_seconds: Annotated[float, typer.Option(min=0.0, help="Of one trainer step.")] = 1.0,
    push_seconds: Annotated[float, typer.Option(min=0.0, help="Of bringing a version to an explorer.")] = 0.1,
    group_bytes: Annotated[float, typer.Option(min=0.0, help="Of one group, for the bytes a day.")] = 0.0,
    version_bytes: Annotated[float, typer.Option(min=0.0, help="Of one version, as it is pushed.")] = 0.0,
    measured: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Folder of a run: durations and sizes as its metrics have them."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Trainer steps.")] = 50,
    png: Annotated[
        Path | None, typer.Option("--picture", "--png", help="Draws the timeline there; a name in .svg gives SVG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a stage, each on one line.")] = False,
) -> None:
    """Shows what a schedule comes to, without running anything: deadlocks, throughput, idle time, staleness, bytes.

    The services' own state machines run in virtual time, with the durations that are given, or those that a run has
    measured. Exit code 1 when both sides would wait for each other for ever, 2 for a bad configuration.

    Examples:

    - `tandem simulate run.yaml --rollout-seconds 20 --train-seconds 8`

    - `tandem simulate run.yaml --explorers 4 --set sync.style=fully_async --picture timeline.png`

    - `tandem simulate run.yaml --from runs/pair --explorers 16`
    """  # noqa: D412 - Markdown wants the blank line before a list
    from common.cli.simulate import Sizes, log_normal, simulate_command  # noqa: PLC0415 - see the module's docstring
    from common.sync.simulate import Durations  # noqa: PLC0415 - as above

    rollout = log_normal(rollout_seconds, rollout_spread) if rollout_spread else rollout_seconds
    simulate_command(
        config,
        overrides,
        explorers=explorers,
        durations=Durations(rollout, train_seconds, push_seconds, latency=0.001),
        sizes=Sizes(group_bytes, version_bytes),
        measured=measured,
        steps=steps,
        png=png,
        as_json=as_json,
    )


@app.command()
def status(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of a trainer or an explorer.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on one line, fields as in the .proto.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
    health: Annotated[
        bool, typer.Option("--health", help="Only whether it is SERVING; exit code 1 when it is not.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML file whose section `security` says how an operator calls."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Shows what a service does, since when, and what it waits for: for what, since when, until when.

    Of a trainer it shows the explorers too. Exit code 1 when nobody answers. Where services ask who calls, give the
    configuration of the run, or the `security.yaml` that `tandem certs` makes: `security.operator` is shown to them.

    For example:

    - `tandem status 127.0.0.1:50051`

    - `tandem status 127.0.0.1:50052 --json | jq .waits`

    - `tandem status 127.0.0.1:50051 --health`

    - `tandem status trainer.example:50051 --config certs/security.yaml`
    """
    from common.cli.service_status import probe_health, show_status  # noqa: PLC0415 - see the module's docstring
    from common.config.load import load_security  # noqa: PLC0415 - as above

    security = load_security(config, overrides or ())
    if health:
        raise typer.Exit(probe_health(address, security, timeout))
    show_status(address, security, as_json=as_json, watch=watch, timeout=timeout)


@app.command()
def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run (`runs/NAME`), or of one stage (`runs/NAME/main`).")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Proves from the trainer's ledgers and the explorers' spools that each group was trained once at most, and none was lost.

    For each explorer: the groups that it produced, and what became of them. Every one trained at most once; none missing
    below the frontier of a durable checkpoint; none made on weights that the run does not descend from, or staler than allowed;
    the spools go on right after what was acknowledged. Works on a run that has finished, has crashed, or goes on, and
    changes nothing. Spools of explorers on other machines are looked for in `RUN/STAGE/explorers`: copy them there.

    Exit codes: 0 clean; 1 with findings, each with the record that shows it; 2 when there is nothing that can be read.

    For example:

    - `tandem audit runs/demo`

    - `tandem audit runs/demo --json | jq '.stages[].findings'`
    """
    from common.cli.audit import audit_command  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(audit_command(folder, as_json=as_json))


@app.command()
def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Made if it is not there; nothing in it is overwritten.")
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Name or IP address of a machine that a service runs on, beside localhost; may be repeated. Needed for "
            "`security.server_names: host`, and by clients other than Tandem's.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificates expire.")] = 365,
) -> None:
    """Makes a CA and certificates for trainer, explorer and operator, for a test setup or a network of your own.

    Each certificate says its role, and each role may call what docs/security.md lists. `DIR/security.yaml` is the section
    `security` that uses them. Give each machine `ca.pem` and the two files of its own role; `ca-key.pem` makes more
    certificates, so keep it apart, or delete it. Called again for the same DIR, with `ca.pem` and `ca-key.pem` in it and a
    role's two files taken away, it makes these anew under the same CA.

    For example:

    - `tandem certs certs --host trainer.example --host explorer.example`
    """
    from common.cli.certs import make_certificates  # noqa: PLC0415 - see the module's docstring

    print(make_certificates(folder, hosts or (), days), end="")


def _with_name(overrides: Sequence[str] | None, name: str | None) -> list[str]:
    named = [] if name is None else [f"run.name={name}"]
    return [*(overrides or ()), *named]


def main() -> None:
    """The entry point: an error of ours is a line, not a traceback."""
    # Read when grpc is imported: what it tells of connections that end would be written over the display.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        app(prog_name="tandem")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - raised again unless it is for people
        sys.exit(_tell(error))


def _tell(error: Exception) -> int:
    """Prints an error that a person can do something about, and returns the exit code; raises any other."""
    from common.errors import ConfigError, TandemError  # noqa: PLC0415 - see the module's docstring

    if not isinstance(error, TandemError):
        raise error
    print(f"tandem: {error.message}", file=sys.stderr)
    return EXIT_BAD_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


if __name__ == "__main__":
    main()
