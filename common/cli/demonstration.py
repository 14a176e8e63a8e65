"""`tandem demo`: a small model learns to follow instructions, both services on this machine, nothing downloaded."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.text import Text

from common.cli.child import LOG_FOLDER
from common.cli.child_log import log_end
from common.cli.display import say
from common.cli.summary import StageSummary
from common.cli.up import RunResult, run_pair
from common.config.load import load_config
from common.config.root import TandemConfig
from common.errors import ConfigError, StorageFailed, TandemError

EXAMPLES_NAME = "examples.jsonl"
EXAMPLES = 20_000
"""Supervised examples of --from-scratch."""
_EXAMPLES_SECONDS = 120.0
"""They take two."""
_PORTS = ("trainer.address=127.0.0.1:0", "explorer.address=127.0.0.1:0", "explorers=[]")
"""Free ports: a demo runs beside whatever else runs here."""

INTRODUCTION = """\
Two services train a small language model on this machine: the explorer lets it answer tasks and scores the answers, the
trainer learns from them and streams the new weights back, over gRPC, after every step.
The task: a letter says what to do with four digits, such as reversing or sorting them. {start}
Reward 1 for the right answer, else 0; the mean on held-out tasks, which are never trained on, is the accuracy."""
START = "The model can do all of it, but ignores\nthe letter: it is right one time in four. Reinforcement teaches it to obey."
START_FROM_SCRATCH = (
    "The model starts from random weights:\nsupervised examples (stage sft) first teach it what can be done, then "
    "reinforcement (stage grpo) teaches it to obey\nthe letter."
)


def run_demo(name: str, overrides: Sequence[str], seed: int | None, *, from_scratch: bool) -> int:
    """Runs the demo, prints its JSON as the last line of standard output when it has finished, and returns the exit code."""
    console = Console(highlight=False)
    with resources.as_file(resources.files("common.cli.demo")) as folder:
        path = folder / ("from_scratch.yaml" if from_scratch else "demo.yaml")
        root = _configured(path, name, overrides, seed).run.root
        chosen = fresh_name(root, name)
        if chosen != name:
            say(console, Text(f"{root / name} holds an earlier run; this one is {root / chosen}"))
        more = [*overrides]
        if from_scratch:
            more.append(f"stages.sft.buffer.path={_quoted(root / chosen / EXAMPLES_NAME)}")
        config = _configured(path, chosen, more, seed)
    say(console, Text(INTRODUCTION.format(start=START_FROM_SCRATCH if from_scratch else START)))
    if from_scratch:
        _write_examples(config.run.folder, config.run.seed)
    result = run_pair(config)
    if result.exit_code == 0:
        print(json.dumps(as_json(result)), flush=True)
    return result.exit_code


def fresh_name(root: Path, name: str) -> str:
    """The name, or NAME-2, NAME-3, ... whichever has no folder yet; makes the folder, so that nobody else takes it.

    Raises StorageFailed where it cannot be made.
    """
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}-{number}"
        try:
            (root / candidate).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageFailed(f"{root / candidate}: {error.strerror}", path=root / candidate) from error
        return candidate
    raise RuntimeError("counting does not end")


def as_json(result: RunResult) -> dict[str, object]:
    """The keys that the demo promises, of the stage that explored last."""
    summary: StageSummary = next(
        (found for found in reversed(result.summaries) if found.explorer_versions), result.summaries[-1]
    )
    return {
        "held_out_start": summary.held_out_start,
        "held_out_end": summary.held_out_end,
        "seconds": round(result.seconds, 2),
        "trainer_steps": summary.steps,
        "explorer_versions": summary.explorer_versions,
        "result": str(summary.result) if summary.result is not None else None,
    }


def _configured(path: Path, name: str, overrides: Sequence[str], seed: int | None) -> TandemConfig:
    seeds = [f"run.seed={seed}"] if seed is not None else []
    # The user's own come last and win.
    config = load_config(path, [*_PORTS, *seeds, *overrides, f"run.name={_quoted(name)}"])
    if config.monitor.sinks and "jsonl" not in config.monitor.sinks:
        raise ConfigError("the demo reads its accuracy from the `jsonl` sink; keep it in `monitor.sinks`")
    return config


def _quoted(value: str | Path) -> str:
    return json.dumps(str(value))


def _write_examples(folder: Path, seed: int) -> None:
    """In a process of its own: the command line knows the services by their names only."""
    out, log = folder / EXAMPLES_NAME, folder / LOG_FOLDER / "examples.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "explorer_service.tasksets.digit_skills", str(out)]
    with log.open("ab") as file:
        offset = file.tell()
        try:
            subprocess.run(
                [*command, "--count", str(EXAMPLES), "--seed", str(seed)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_EXAMPLES_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError as error:
            said = "; ".join(log_end(log, offset).lines)
            raise TandemError(f"the supervised examples could not be written: {said or error} (log: {log})") from error
