"""One writer a folder: a second one is told who the first is, and when it gave its last sign of life.

The system's lock says whether the owner lives, on this machine and wherever the file system passes locks on. Where it does not, the
owner's heartbeat says it: the lock file's time, renewed every few seconds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.checkpoint.atomic import storage_errors
from common.errors import ConfigError

LOCK_NAME = "writer.lock"
MAX_OWNER_BYTES = 256
HEARTBEAT_SECONDS = 5.0
SILENT_SECONDS = 3 * HEARTBEAT_SECONDS
"""An owner on another machine that gave no sign of life for so long is dead."""


@contextmanager
def exclusive(root: Path, what: str) -> Iterator[None]:
    """Holds the folder for this process; the system lets go when the process ends, however it ends.

    Waits, for at most `SILENT_SECONDS`, whether an owner on another machine lives. Raises ConfigError naming the owner when another
    process holds it, StorageFailed when the folder cannot be used.
    """
    with storage_errors(root, "cannot use"):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        owner = os.pread(descriptor, MAX_OWNER_BYTES, 0).decode(errors="replace").strip()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(root, what, owner, descriptor) from None
        if _is_elsewhere(owner) and _gives_signs_of_life(descriptor):
            raise _refusal(root, what, owner, descriptor)
        _write(descriptor, f"{what}, process {os.getpid()} on {socket.gethostname()}\n")
        with _heartbeat(descriptor):
            yield
        _write(descriptor, "")
    finally:
        os.close(descriptor)


def _refusal(root: Path, what: str, owner: str, descriptor: int) -> ConfigError:
    silent = max(0.0, time.time() - os.fstat(descriptor).st_mtime)
    seen = f"; it gave no sign of life for {silent:.0f} s" if silent > SILENT_SECONDS else ""
    return ConfigError(f"{root} belongs to another {what} that is running: {owner or 'unknown'}{seen}")


def _is_elsewhere(owner: str) -> bool:
    """Whether it is one on another machine, which has not let go."""
    return bool(owner) and not owner.endswith(f" on {socket.gethostname()}")


def _gives_signs_of_life(descriptor: int) -> bool:
    """Watches the heartbeat for as long as it would take to miss some; clocks of two machines are not compared."""
    before = os.fstat(descriptor).st_mtime_ns
    if time.time() - before / 1e9 > 100 * SILENT_SECONDS:
        return False  # no two clocks are that far apart
    until = time.monotonic() + SILENT_SECONDS
    while time.monotonic() < until:
        time.sleep(HEARTBEAT_SECONDS / 10)
        if os.fstat(descriptor).st_mtime_ns != before:
            return True
    return False


@contextmanager
def _heartbeat(descriptor: int) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            os.utime(descriptor)

    thread = threading.Thread(target=beat, name="run-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(descriptor: int, owner: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner.encode()[:MAX_OWNER_BYTES], 0)
