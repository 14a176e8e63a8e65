"""Runs the pair with compose and looks at it from the host: `make compose-test`.

Builds the image (`BASE_IMAGE` chooses its base), starts trainer and explorer, waits until both serve, sees the trainer's
steps advance and the explorer's policy version follow, and ends the run by the trainer's `Stop`: both must exit with 0.
Then it starts them again, which must go on from the saved step, and ends them by `compose stop`: both must drain and exit
with 143 within the grace period, where a kill would show as 137. What it made is removed in every case; the image stays.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("docker-compose.yml", "tests/compose/endless.yml")
GRPCURL = Path(sys.executable).parent / "grpcurl"

BUILD_SECONDS = 900.0
START_SECONDS = 240.0
PROGRESS_SECONDS = 180.0
STOP_SECONDS = 100.0
"""Above `stop_grace_period`: what is slower than that was killed, which the exit code shows."""

STEPS_SEEN = 3
"""So many steps, and so many policy versions, must be seen to pass: one could be luck."""

FINISHED, TERMINATED = 0, 143
"""Exit codes of the services: the run reached its end; SIGTERM after a clean drain (128 + 15)."""


class CheckFailed(Exception):
    """Something is not as it must be."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service of docker-compose.yml."""

    name: str
    grpc_name: str
    port: int


TRAINER = Service("trainer", "tandem.v1.TrainerService", 50051)
EXPLORER = Service("explorer", "tandem.v1.ExplorerService", 50052)
SERVICES = (TRAINER, EXPLORER)


def say(text: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"compose: {text}\n")
    sys.stdout.flush()


def output_of(command: list[str], *, timeout: float, environment: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, timeout=timeout, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CheckFailed(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def wait_until(what: str, holds: Callable[[], bool], *, timeout: float) -> None:
    """Asks again and again; raises after `timeout` seconds, with the last reason for not answering, if there was one."""
    deadline = time.monotonic() + timeout
    trouble = ""
    while time.monotonic() < deadline:
        try:
            if holds():
                say(what)
                return
            trouble = ""
        except CheckFailed as error:
            trouble = f"; last: {error}"
        time.sleep(0.5)
    raise CheckFailed(f"not within {timeout:.0f} s: {what}{trouble}")


def compose_command() -> list[str]:
    """Compose as a plugin of docker, or the program of its own."""
    docker, standalone = shutil.which("docker"), shutil.which("docker-compose")
    if docker is None:
        raise CheckFailed("there is no docker here")
    plugin = subprocess.run([docker, "compose", "version"], capture_output=True, timeout=30, check=False)
    if plugin.returncode == 0:
        return [docker, "compose"]
    if standalone is None:
        raise CheckFailed("there is neither `docker compose` nor `docker-compose` here")
    return [standalone]


class Pair:
    """The two services, under a project name of their own and on ports that the engine picks."""

    def __init__(self) -> None:
        project = f"tandem-check-{os.getpid()}"
        files = [argument for file in FILES for argument in ("--file", file)]
        self._compose = [*compose_command(), "--project-name", project, *files]
        self._environment = {**os.environ, "TRAINER_PORT": "0", "EXPLORER_PORTS": "0"}

    def compose(self, *arguments: str, timeout: float = 60.0) -> str:
        """Standard output of one compose command."""
        return output_of([*self._compose, *arguments], timeout=timeout, environment=self._environment)

    def build(self) -> None:
        """Builds the image of both, with its output shown."""
        command = [*self._compose, "build", TRAINER.name]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, timeout=BUILD_SECONDS, check=False)
        if done.returncode:
            raise CheckFailed(f"the build exited with {done.returncode}")

    def grpcurl(self, service: Service, method: str, message: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call from the host, its response as JSON."""
        address = self.compose("port", service.name, str(service.port)).strip()
        command = [str(GRPCURL), "-plaintext", "-max-time", "5", "-d", json.dumps(message or {}), address, method]
        response: dict[str, Any] = json.loads(output_of(command, timeout=15) or "{}")
        return response

    def status(self, service: Service) -> dict[str, Any]:
        """Its GetStatus."""
        return self.grpcurl(service, f"{service.grpc_name}/GetStatus")

    def trainer_step(self) -> int:
        """Steps that the trainer has done."""
        return int(self.status(TRAINER).get("step", 0))

    def policy_step(self) -> int:
        """The version that the explorer's rollouts run on."""
        status = self.status(EXPLORER)
        # Which of the two grpcurl writes depends on the descriptors that reflection serves.
        version = status.get("policyVersion", status.get("policy_version", {}))
        return int(version.get("step", 0))

    def serves(self, service: Service) -> bool:
        """Its health, seen from the host."""
        return self.grpcurl(service, "grpc.health.v1.Health/Check").get("status") == "SERVING"

    def container(self, service: Service) -> dict[str, Any]:
        """What the engine knows of its container."""
        name = self.compose("ps", "--all", "--quiet", service.name).strip()
        if not name:
            raise CheckFailed(f"{service.name} has no container")
        described: dict[str, Any] = json.loads(output_of(["docker", "inspect", name], timeout=30))[0]
        return described


def bring_up(pair: Pair) -> None:
    """Starts both and waits for their health."""
    pair.compose("up", "--detach", "--no-build", timeout=START_SECONDS)
    for service in SERVICES:
        wait_until(f"{service.name} is SERVING", lambda service=service: pair.serves(service), timeout=START_SECONDS)


def see_progress(pair: Pair) -> int:
    """Waits until steps and versions have moved on, and returns the newest step seen."""
    step, version = pair.trainer_step(), pair.policy_step()
    wait_until(
        f"the trainer went on from step {step} by {STEPS_SEEN} or more",
        lambda: pair.trainer_step() >= step + STEPS_SEEN,
        timeout=PROGRESS_SECONDS,
    )
    wait_until(
        f"the explorer's policy version followed from {version} by {STEPS_SEEN} or more",
        lambda: pair.policy_step() >= version + STEPS_SEEN,
        timeout=PROGRESS_SECONDS,
    )
    return pair.trainer_step()


def see_exit(pair: Pair, expected: int) -> None:
    """Waits until both have ended, by themselves and with the expected code, once."""
    for service in SERVICES:
        wait_until(
            f"{service.name} has ended",
            lambda service=service: pair.container(service)["State"]["Status"] == "exited",
            timeout=STOP_SECONDS,
        )
        container = pair.container(service)
        code, restarts = container["State"]["ExitCode"], container["RestartCount"]
        if code != expected or restarts:
            raise CheckFailed(
                f"{service.name} exited with {code} after {restarts} restarts; expected {expected} after 0"
            )
        say(f"{service.name} exited with {code}")


def see_hardening(pair: Pair) -> None:
    """Neither service runs as root, and nothing but the volume and /tmp can be written."""
    for service in SERVICES:
        user = pair.compose("exec", "-T", service.name, "id", "-u").strip()
        if user == "0":
            raise CheckFailed(f"{service.name} runs as root")
        if not pair.container(service)["HostConfig"]["ReadonlyRootfs"]:
            raise CheckFailed(f"{service.name} can write to its root file system")
    say("both run without root, on a read-only root file system")


def check(pair: Pair) -> None:
    """All of it, in order."""
    pair.build()
    bring_up(pair)
    see_hardening(pair)
    step = see_progress(pair)
    pair.grpcurl(TRAINER, f"{TRAINER.grpc_name}/Stop", {"reason": "the compose check has seen enough"})
    see_exit(pair, FINISHED)

    bring_up(pair)
    resumed = pair.trainer_step()
    if resumed < step:
        raise CheckFailed(f"the trainer had done {step} steps and came back with {resumed}")
    say(f"the trainer went on from the volume at step {resumed}")
    see_progress(pair)
    pair.compose("stop", timeout=STOP_SECONDS)
    see_exit(pair, TERMINATED)


def end_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Ends by an exception, so that what was made is removed first."""
    raise SystemExit(128 + number)


def main() -> int:
    """Exit code 0 when all is as it must be."""
    signal.signal(signal.SIGTERM, end_on_signal)
    started = time.monotonic()
    try:
        pair = Pair()
        try:
            check(pair)
        except (CheckFailed, subprocess.TimeoutExpired):
            sys.stdout.write(pair.compose("logs", "--no-color", "--tail", "60"))
            raise
        finally:
            pair.compose("down", "--volumes", "--remove-orphans", timeout=STOP_SECONDS + 60)
    except (CheckFailed, subprocess.TimeoutExpired) as error:
        say(f"FAILED: {error}")
        return 1
    say(f"all as it must be, after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
