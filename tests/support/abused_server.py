"""A server of the real kind in a process of its own, whose memory a test can watch.

`python -m tests.support.abused_server SECTION LIMITS OPTIONS`: the sections `security` and `limits`, and constants of
common/rpc/options.py, each as JSON. It writes its address on a line, and serves until its standard input ends.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.process import prepare_process

if __name__ == "__main__":
    prepare_process()

import psutil

from common.config.root import LimitsConfig
from common.config.security import Role, SecurityConfig
from common.logging import configure_logging
from common.rpc import options
from common.rpc.credentials import ServerSecurity
from common.rpc.server import RpcServer
from protos.tandem.v1 import explorer_pb2_grpc, trainer_pb2_grpc
from tests.support.scripted_rpc import Scripted

REPOSITORY = Path(__file__).parents[2]
PAYLOAD = 1 << 18
"""Bytes of each message that WatchMetrics sends for ever."""


@dataclass(frozen=True)
class AbusedServer:
    """The process, seen from outside."""

    process: "subprocess.Popen[str]"
    address: str
    log: Path

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def open_files(self) -> int:
        """Files and connections that it holds."""
        return int(psutil.Process(self.process.pid).num_fds())


@contextmanager
def abused_server(
    folder: Path, security: Mapping[str, Any], limits: Mapping[str, int], constants: Mapping[str, int]
) -> Iterator[AbusedServer]:
    """Starts it, and ends it."""
    log = folder / "server.log"
    arguments = [json.dumps(dict(part)) for part in (security, limits, constants)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.abused_server", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield AbusedServer(process, json.loads(line)["address"], log)
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.communicate()


async def serve(security: str, limits: str, constants: str) -> None:
    """Both services' methods, as far as the wire goes."""
    configure_logging("INFO", "json")
    for name, value in json.loads(constants).items():
        assert hasattr(options, name)
        setattr(options, name, value)
    doors = ServerSecurity(SecurityConfig.model_validate_json(security), Role.TRAINER)
    server = RpcServer("127.0.0.1:0", "tandem.v1.TrainerService", LimitsConfig.model_validate_json(limits), doors)
    scripted = Scripted()
    scripted.payload = "x" * PAYLOAD

    def add(target: Any) -> None:
        explorer_pb2_grpc.add_ExplorerServiceServicer_to_server(scripted, target)
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(scripted, target)

    address = await server.start(add)
    await server.set_serving(serving=True)
    print(json.dumps({"address": address}), flush=True)  # noqa: T201 - what the test reads
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
