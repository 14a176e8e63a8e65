"""`tandem demo`: a small model learns to follow instructions, both services on this machine, nothing downloaded."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
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
_WIDTH = 100
_PORTS = ("trainer.address=127.0.0.1:0", "explorer.address=127.0.0.1:0", "explorers=[]")
"""Free ports: a demo runs beside whatever else runs here."""

_TASK = (
    "The task: a letter says what to do with four digits, such as reversing or sorting them. The model has {start} "
    "The reward is 1 for the right answer, else 0; its mean on held-out tasks, which are never trained on, is the accuracy."
)
_INTRODUCTION = (
    "Two services train a small language model on this machine. The explorer lets it answer tasks and scores the answers; "
    "the trainer learns from them, and streams the new weights back over gRPC after every step."
)
_START = (
    "learnt all of it, but ignores the letter, so that it is right one time in four. Reinforcement teaches it to obey."
)
_START_FROM_SCRATCH = (
    "learnt nothing yet: supervised examples (stage sft) first show it what can be done with digits, then reinforcement "
    "(stage grpo) teaches it to obey the letter."
)


def run_demo(name: str, overrides: Sequence[str], seed: int | None, *, from_scratch: bool) -> int:
    """Runs the demo, prints its JSON as the last line of standard output when it has finished, and returns the exit code."""
    console = Console(highlight=False)
    with resources.as_file(resources.files("common.cli.demo")) as folder:
        path = folder / ("from_scratch.yaml" if from_scratch else "demo.yaml")
        root = _configured(path, name, overrides, seed, from_scratch=from_scratch).run.root
        chosen = fresh_name(root, name)
        if chosen != name:
            say(console, Text(f"{root / name} holds an earlier run; this one is {root / chosen}"))
        config = _configured(path, chosen, overrides, seed, from_scratch=from_scratch)
    task = _TASK.format(start=_START_FROM_SCRATCH if from_scratch else _START)
    for paragraph in (_INTRODUCTION, task):
        say(console, Text(textwrap.fill(paragraph, min(_WIDTH, console.width))))
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


def _configured(
    path: Path, name: str, overrides: Sequence[str], seed: int | None, *, from_scratch: bool
) -> TandemConfig:
    seeds = [f"run.seed={seed}"] if seed is not None else []
    # The user's own come after ours and win.
    settings = [*_PORTS, *seeds, *overrides, f"run.name={json.dumps(name)}"]
    config = load_config(path, [*settings, *_examples(Path(), from_scratch=from_scratch)])
    if "jsonl" not in config.monitor.sinks:
        raise ConfigError("the demo reads its accuracy from the `jsonl` sink; keep it in `monitor.sinks`")
    return load_config(path, [*settings, *_examples(config.run.folder, from_scratch=from_scratch)])


def _examples(folder: Path, *, from_scratch: bool) -> list[str]:
    """Where stage sft finds what `_write_examples` writes."""
    path = json.dumps(str(folder / EXAMPLES_NAME))
    return [f"stages.sft.buffer.path={path}"] if from_scratch else []


def _write_examples(folder: Path, seed: int) -> None:
    """In a process of its own: the command line knows the services by their names only."""
    out, log = folder / EXAMPLES_NAME, folder / LOG_FOLDER / "examples.log"
    command = [sys.executable, "-m", "explorer_service.tasksets.digit_skills", str(out)]
    offset = 0
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            offset = file.tell()
            subprocess.run(
                [*command, "--count", str(EXAMPLES), "--seed", str(seed)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_EXAMPLES_SECONDS,
                check=True,
            )
    except OSError as error:
        raise StorageFailed(f"{log}: {error.strerror}", path=log) from error
    except subprocess.SubprocessError as error:
        said = "; ".join(log_end(log, offset).lines)
        raise TandemError(f"the supervised examples could not be written: {said or error} (log: {log})") from error
