"""A child that was started to end with its parent does, and only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.parent import END_WITH_STDIN

ROOT = Path(__file__).parents[2]
CHILD = """\
import os, signal, sys, time
from common.process import prepare_process

def end(number, frame):
    # Not print: the handler may have interrupted one.
    os.write(1, f"drained {number}\\n".encode())
    sys.exit(7)

signal.signal(signal.SIGTERM, end)
prepare_process()
print("ready", os.environ.get("TANDEM_END_WITH_STDIN"), flush=True)
for _ in range(LOOPS):
    time.sleep(0.05)
print("went on", flush=True)
"""


def start(environ: dict[str, str], loops: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.replace("LOOPS", str(loops))],
        cwd=ROOT,
        env={"PATH": "/usr/bin", **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_child_drains_when_the_other_end_of_its_input_is_gone_and_hands_the_wish_on_to_nobody() -> None:
    child = start({END_WITH_STDIN: "1"}, loops=1200)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready None\n"
    output, _ = child.communicate(timeout=60)  # closes the input
    assert output == "drained 15\n"
    assert child.returncode == 7


@pytest.mark.parametrize("environ", [{}, {END_WITH_STDIN: "0"}])
def test_a_child_that_was_not_asked_to_lives_without_an_input(environ: dict[str, str]) -> None:
    child = start(environ, loops=5)
    output, _ = child.communicate(timeout=60)
    assert output.endswith("went on\n")
    assert child.returncode == 0
