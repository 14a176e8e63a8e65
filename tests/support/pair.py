"""The two services as child processes: started, watched by their status, signalled, and never left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import grpc
import yaml

from common.audit.ledger_files import FOLDER
from common.config.root import LimitsConfig
from common.config.security import Role, SecurityConfig
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller
from common.rpc.stubs import explorer_stub, trainer_stub
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from tests.support.audited import audited_clean

Side = Literal["trainer", "explorer"]
REPOSITORY = Path(__file__).parents[2]
SECONDS = 180.0
"""Starting one takes ten seconds of imports on a busy machine of two cores."""
CALL_SECONDS = 5.0
POLL_SECONDS = 0.1


class Service:
    """One service process."""

    def __init__(
        self,
        side: Side,
        config: Path,
        settings: Mapping[str, Any],
        log: Path,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.side = side
        self.log = log
        self.address: str = settings[side]["address"]
        for argument in arguments:
            if argument.startswith(f"{side}.address="):
                self.address = argument.partition("=")[2]
        self._caller = Caller(SecurityConfig.model_validate(settings.get("security", {})), Role.OPERATOR, Role(side))
        whole = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(REPOSITORY), **environment}
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{side}_service", "--config", str(config), *arguments],
                cwd=REPOSITORY,
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of its log that are JSON."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(SECONDS):
            return await asyncio.to_thread(self.process.wait)

    async def status(self) -> Any:
        """GetStatus; None while it cannot be reached."""
        async with open_channel(self.address, LimitsConfig(), self._caller) as channel:
            try:
                if self.side == "trainer":
                    request = trainer_pb2.TrainerServiceGetStatusRequest()
                    return await trainer_stub(channel).GetStatus(request, timeout=CALL_SECONDS)
                return await explorer_stub(channel).GetStatus(
                    explorer_pb2.ExplorerServiceGetStatusRequest(), timeout=CALL_SECONDS
                )
            except grpc.aio.AioRpcError:
                return None

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        """The first status for which `holds`; fails when the process ends before."""
        async with asyncio.timeout(SECONDS):
            while True:
                status = await self.status()
                if status is not None and holds(status):
                    return status
                assert self.process.poll() is None, f"the {self.side} ended with {self.process.returncode}"
                await asyncio.sleep(POLL_SECONDS)


class Pair:
    """Services that share one configuration file."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.config = folder / "pair.yaml"
        self.config.write_text(yaml.safe_dump(dict(settings)))
        self.started: list[Service] = []

    def start(self, side: Side, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> Service:
        """Starts one more process, with more variables in its environment."""
        log = self.folder / f"{side}-{len(self.started)}.log"
        service = Service(side, self.config, self.settings, log, *arguments, environment=environment)
        self.started.append(service)
        return service

    async def first_end(self, running: Mapping[Side, Service]) -> Side:
        """Which of these ends first."""
        async with asyncio.timeout(SECONDS):
            while True:
                for side, service in running.items():
                    if service.process.poll() is not None:
                        return side
                await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def processes(folder: Path, settings: Mapping[str, Any]) -> AsyncIterator[Pair]:
    """A pair, nothing started. At the end what still runs is killed, and what it has left is audited.

    When a test fails, all logs are shown.
    """
    pair = Pair(folder, settings)
    try:
        yield pair
    except BaseException:
        for service in pair.started:
            print(f"--- {service.log.name}, exit code {service.process.poll()}")  # noqa: T201 - pytest shows it with the failure
            print(service.log.read_text(errors="replace")[-6000:])  # noqa: T201 - as above
        raise
    finally:
        for service in pair.started:
            if service.process.poll() is None:
                service.process.kill()
            service.process.wait()
    run = Path(settings["run"]["root"]) / settings["run"]["name"]
    for ledgers in run.glob(f"*/{FOLDER}"):
        audited_clean(ledgers.parent)
