"""A trainer that stalls makes the explorer hold back, and neither of them fills its memory meanwhile."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.stalled_stream import TOKENS, expected_digest

BATCHES = 120
SPOOLED_BYTES = BATCHES * TOKENS * 9
ALLOWED_BYTES = 48 << 20
"""gRPC's windows and its allocator take some (6 to 25 MB were seen); 108 MB wait in the spool."""
SECONDS = 60.0
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.support.stalled_stream", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def said(running: subprocess.Popen[str]) -> dict[str, Any]:
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line, "it has ended"
    return json.loads(line)


def resident(running: subprocess.Popen[str]) -> int:
    return int(psutil.Process(running.pid).memory_info().rss)


def settled(*processes: subprocess.Popen[str]) -> list[int]:
    """Resident bytes of each when they have stopped to change."""
    before: list[int] = []
    deadline = time.monotonic() + SECONDS
    while True:
        now = [resident(one) for one in processes]
        if before and all(abs(new - old) < 1 << 20 for new, old in zip(now, before, strict=True)):
            return now
        assert time.monotonic() < deadline, f"resident bytes went from {before} to {now} and on"
        before = now
        time.sleep(0.7)


def test_a_stalled_trainer_fills_nobodys_memory_and_loses_nothing(tmp_path: Path) -> None:
    with process("explorer", tmp_path, BATCHES) as explorer:
        at = said(explorer)
        assert at["spooled"] > SPOOLED_BYTES * 0.99
        idle_explorer = resident(explorer)
        with process("trainer", at["address"], BATCHES) as trainer:
            assert said(trainer) == {"stalled_after": 3}
            idle_trainer = psutil.Process(trainer.pid).memory_info().rss
            full_explorer, full_trainer = settled(explorer, trainer)
            assert full_explorer - idle_explorer < ALLOWED_BYTES
            assert full_trainer - idle_trainer < ALLOWED_BYTES
            assert trainer.stdin is not None
            trainer.stdin.write("\n")
            trainer.stdin.flush()
            assert said(trainer) == {"read": BATCHES, "digest": expected_digest(BATCHES)}
            assert resident(explorer) - idle_explorer < ALLOWED_BYTES
            assert resident(trainer) - idle_trainer < ALLOWED_BYTES
