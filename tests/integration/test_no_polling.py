"""The services wait for events, never by looking again and again; see `no_polling_cases.py`.

Each case brings an event loop of its own, and gRPC takes one loop a process: so each runs in a process of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("no_polling_cases.py")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "case",
    [
        "test_a_version_is_on_its_way_the_moment_its_step_is_done[fixed]",
        "test_a_version_is_on_its_way_the_moment_its_step_is_done[trainer_driven]",
        "test_a_version_is_on_its_way_the_moment_its_step_is_done[fully_async]",
        "test_an_explorer_without_a_trainer_only_waits_for_its_deadline",
        "test_a_paused_pair_does_nothing",
    ],
)
def test_nothing_polls(case: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{CASES}::{case}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
