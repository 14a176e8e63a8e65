"""The `tandem` command as a process, with services as processes that pretend (tests/support/fake_service.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.config.load import load_config
from tests.support.fake_service import install

SECONDS = 60
CONFIG = """\
run: {name: pretend}
model: {path: somewhere}
trainer: {address: "127.0.0.1:0", total_steps: 4}
explorer: {address: "127.0.0.1:0"}
sync: {offset: 1}
"""


@dataclass
class Tandem:
    """Starts the command in a folder where both services only pretend."""

    folder: Path
    environ: Mapping[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, trainer: str = "finish", explorer: str = "finish") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "common.cli.app", *arguments],
            cwd=self.folder,
            env={**self.environ, "FAKE_TRAINER": trainer, "FAKE_EXPLORER": explorer},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def until(self, *files: str) -> None:
        """Returns when the services have left these files."""
        end = time.monotonic() + SECONDS
        while not all((self.folder / name).exists() for name in files):
            assert time.monotonic() < end, f"no {files}"
            time.sleep(0.02)

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def signals(self, name: str) -> list[int]:
        return [int(line) for line in (self.folder / f"{name}.signals").read_text().split()]


@pytest.fixture
def tandem(tmp_path: Path) -> Iterator[Tandem]:
    (tmp_path / "run.yaml").write_text(CONFIG)
    command = Tandem(tmp_path, install(tmp_path))
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=SECONDS)


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has reaped: the services' parent may have been killed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_is_shown_in_plain_lines_and_summed_up_at_its_end(tandem: Tandem) -> None:
    process = tandem.start("up", "run.yaml")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("fixed: the explorer makes 2 explore steps")
    assert any("step " in line and "trainer " in line and "explorer " in line for line in lines)
    table = {line[:33].strip(): line[33:].strip() for line in lines}
    assert table["held-out reward, start and end"] == "0.250 → 0.750"
    run = tandem.folder / "runs" / "pretend"
    assert (run / "reward.png").exists()
    assert "held-out reward" in (run / "report.html").read_text()
    effective = load_config(run / "config.yaml", environ={})
    assert not effective.trainer.address.endswith(":0")
    assert effective.explorers[0].address == effective.explorer.address
    assert (run / "logs" / "trainer.log").exists()


def test_what_the_environment_sets_does_not_undo_the_ports(tandem: Tandem) -> None:
    tandem.environ = {**tandem.environ, "TANDEM__TRAINER__ADDRESS": "127.0.0.1:0", "TANDEM__RUN__NAME": "other"}
    process = tandem.start("up", "run.yaml")
    _, err = process.communicate(timeout=SECONDS)
    # The fakes read the environment too, as the services do; with port 0 they would listen elsewhere.
    assert (process.returncode, err) == (0, "")
    assert (tandem.folder / "runs" / "other" / "report.html").exists()


def test_the_demos_last_line_is_json(tandem: Tandem) -> None:
    (tandem.folder / "runs" / "demo").mkdir(parents=True)
    process = tandem.start("demo", "--seed", "7")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    assert out.startswith(f"runs{os.sep}demo holds an earlier run; this one is runs{os.sep}demo-2\n")
    result = json.loads(out.splitlines()[-1])
    assert (result["held_out_start"], result["held_out_end"], result["trainer_steps"]) == (0.25, 0.75, 4)
    assert result["explorer_versions"] == 3  # evaluated at versions 0, 2 and 4
    assert result["seconds"] > 0
    assert load_config(tandem.folder / "runs" / "demo-2" / "config.yaml", environ={}).run.seed == 7


def test_the_failing_sides_exit_code_error_and_log_are_shown(tandem: Tandem) -> None:
    process = tandem.start("up", "run.yaml", trainer="wait", explorer="fail")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 3
    log = Path("runs") / "pretend" / "logs" / "explorer.log"
    assert err.splitlines() == [
        "the explorer failed with exit code 3",
        "  run_failed (STORAGE_FAILED): the disk is full",
        f"  log: {log}",
    ]
    assert has_ended(tandem.pid("explorer"))
    assert not (tandem.folder / "trainer.pid").exists() or has_ended(tandem.pid("trainer"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_both_once_and_their_drain_is_waited_for(
    tandem: Tandem, number: signal.Signals, code: int
) -> None:
    process = tandem.start("up", "run.yaml", trainer="wait", explorer="wait")
    tandem.until("trainer.signals", "explorer.signals")
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert f"{number.name}: both sides finish what they are doing and save" in out
    assert "interrupted after" in err
    assert tandem.signals("trainer") == tandem.signals("explorer") == [number]


def test_a_second_signal_kills_what_does_not_drain(tandem: Tandem) -> None:
    process = tandem.start("up", "run.yaml", trainer="stubborn", explorer="stubborn")
    tandem.until("trainer.signals", "explorer.signals")
    process.send_signal(signal.SIGINT)
    end = time.monotonic() + SECONDS
    while not (tandem.signals("trainer") and tandem.signals("explorer")):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert has_ended(tandem.pid("trainer"))
    assert has_ended(tandem.pid("explorer"))


def test_the_services_drain_and_end_when_whoever_started_them_is_killed(tandem: Tandem) -> None:
    process = tandem.start("up", "run.yaml", trainer="wait", explorer="wait")
    tandem.until("trainer.signals", "explorer.signals")
    process.kill()
    process.communicate(timeout=SECONDS)
    end = time.monotonic() + SECONDS
    while not (has_ended(tandem.pid("trainer")) and has_ended(tandem.pid("explorer"))):
        assert time.monotonic() < end, "a service has outlived its parent"
        time.sleep(0.02)
    assert tandem.signals("trainer") == tandem.signals("explorer") == [signal.SIGTERM]
