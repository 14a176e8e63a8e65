"""A service as a child process: started by its name, as compose would, its log in a file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from common.cli.child_log import LogEnd, log_end
from common.config.load import ENVIRONMENT_PREFIX
from common.errors import StorageFailed
from common.parent import END_WITH_STDIN
from common.service import EXIT_SIGNAL_BASE

LOG_FOLDER = "logs"


class Child:
    """One service that runs, or has ended."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, log_offset: int) -> None:
        self.name = name
        """The word "trainer" or "explorer"."""
        self.log = log
        self._process = process
        self._log_offset = log_offset

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + N when signal N ended it, as shells count."""
        code = self._process.poll()
        if code is None or code >= 0:
            return code
        return EXIT_SIGNAL_BASE - code

    def send(self, number: int) -> None:
        """Sends a signal; to one that has ended nothing happens."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, to it and to what it has started: it leads a process group of its own."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Returns its exit code when it has ended. The supervisor's deadlines bound the wait."""
        code = await asyncio.to_thread(self._process.wait)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code if code >= 0 else EXIT_SIGNAL_BASE - code

    def log_end(self) -> LogEnd:
        """What it wrote last in this start."""
        return log_end(self.log, self._log_offset)


def start_service(name: str, config: Path, log_folder: Path) -> Child:
    """`python -m NAME_service --config FILE`, its output appended to LOG_FOLDER/NAME.log. Raises StorageFailed."""
    log = log_folder / f"{name}.log"
    try:
        log_folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return _start(name, [sys.executable, "-m", f"{name}_service", "--config", str(config)], file)
    except OSError as error:
        raise StorageFailed(f"{log}: {error.strerror}", path=log) from error


def _start(name: str, command: list[str], file: IO[bytes]) -> Child:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # see common/parent.py
        stdout=file,
        stderr=subprocess.STDOUT,
        env=_environment(os.environ),
        # A terminal sends Ctrl-C to its whole foreground group; the services get it from the supervisor, once.
        process_group=0,
    )
    return Child(name, process, Path(file.name), file.tell())


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours without `TANDEM__...`, which the effective configuration holds already, ports chosen since."""
    kept = {name: value for name, value in ours.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    return {
        # Before anything else of the child runs, plugins' `sitecustomize` included; see common/process.py.
        "OMP_WAIT_POLICY": "passive",
        **kept,
        "PYTHONUNBUFFERED": "1",
        END_WITH_STDIN: "1",
    }
