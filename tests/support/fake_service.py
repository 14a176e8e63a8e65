"""A service that only pretends, for tests of what supervises it: `python -m trainer_service` in a folder made by `install`.

What it does is said by the environment, FAKE_TRAINER and FAKE_EXPLORER:
finish     serves a canned status, leaves metrics (the trainer), and ends with 0
fail       logs an error as JSON and ends with 3
blame      logs that its peer failed and ends with 1
wait       until a signal; notes it in NAME.signals, and ends with 128 + its number
stubborn   notes signals, and goes on
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from common.parent import end_with_parent

ROOT = Path(__file__).parents[2]
LIFETIME_SECONDS = 60.0
HELD_OUT = ((0, 0.25), (2, 0.5), (4, 0.75))
STEPS = 4


def install(folder: Path) -> dict[str, str]:
    """Puts both packages into a folder, where `python -m` finds them first; returns the environment to start it in."""
    for name in ("trainer", "explorer"):
        package = folder / f"{name}_service"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(f"from tests.support.fake_service import main\nmain({name!r})\n")
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def main(name: str) -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = parser.parse_args().config
    Path(f"{name}.pid").write_text(str(os.getpid()))
    behaviour = os.environ.get(f"FAKE_{name.upper()}", "finish")
    match behaviour:
        case "finish":
            finish(name, config)
        case "fail":
            say(level="error", event="run_failed", reason="STORAGE_FAILED", error="the disk is full")
            sys.exit(3)
        case "blame":
            say(level="error", event="run_failed", reason="PEER_FAILED", error="the other side failed")
            sys.exit(1)
        case _:
            until_signalled(name, stubborn=behaviour == "stubborn")


def say(**event: Any) -> None:
    sys.stderr.write(json.dumps(event) + "\n")
    sys.stderr.flush()


def until_signalled(name: str, *, stubborn: bool) -> None:
    noted = Path(f"{name}.signals")

    def on_signal(number: int, _frame: FrameType | None) -> None:
        with noted.open("a") as file:
            file.write(f"{number}\n")
        if not stubborn:
            sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    noted.touch()
    end = time.monotonic() + LIFETIME_SECONDS
    while time.monotonic() < end:
        time.sleep(0.05)
    sys.exit(9)


def finish(name: str, path: Path) -> None:
    import grpc  # noqa: PLC0415 - the other behaviours start faster without

    from common.config.load import load_config  # noqa: PLC0415 - as above
    from common.monitor.build import metrics_folder  # noqa: PLC0415 - as above
    from common.monitor.jsonl import JsonlSink  # noqa: PLC0415 - as above
    from tests.support.canned_status import ExplorerServicer, TrainerServicer, add  # noqa: PLC0415 - as above

    config = load_config(path, environ=os.environ)
    server = grpc.server(ThreadPoolExecutor(4))
    servicer = TrainerServicer() if name == "trainer" else ExplorerServicer()
    add(servicer, server)
    side = config.trainer if name == "trainer" else config.explorer
    if server.add_insecure_port(side.address) == 0:
        sys.exit(4)
    server.start()
    if name == "trainer":
        sink = JsonlSink(metrics_folder(config) / "trainer.jsonl")
        for step, reward in HELD_OUT:
            sink.log(step, float(step), "explorer-0", {"eval/reward_mean": reward, "eval/policy_version": float(step)})
        for step in range(1, STEPS + 1):
            sink.log(step, step + 0.5, "trainer", {"reward/mean": step / 10, "sync/published_version": float(step)})
        sink.close()
    time.sleep(2.5)
    server.stop(0).wait(5)
