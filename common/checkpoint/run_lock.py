"""One writer a folder: a second one is told who the first is."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.checkpoint.atomic import storage_errors
from common.errors import ConfigError

LOCK_NAME = "writer.lock"
MAX_OWNER_BYTES = 256


@contextmanager
def exclusive(root: Path, what: str) -> Iterator[None]:
    """Holds the folder for this process; the system lets go when the process ends, however it ends.

    Raises ConfigError naming the owner when another process holds it, StorageFailed when the folder cannot be used.
    """
    with storage_errors(root, "cannot use"):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, MAX_OWNER_BYTES).decode(errors="replace").strip()
            raise ConfigError(f"{root} belongs to another {what} that is running: {owner or 'unknown'}") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{what}, process {os.getpid()} on {socket.gethostname()}\n".encode()[:MAX_OWNER_BYTES])
        yield
    finally:
        os.close(descriptor)
