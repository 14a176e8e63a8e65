"""Leases: who reads a checkpoint holds it, and retention leaves what is held alone, across processes and hosts.

A lease is a shared flock on the checkpoint's own `manifest.json`; deleting takes an exclusive one. The lock goes with
the process that holds it, however that ends, needs no write access, and leaves no lock files behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.checkpoint.atomic import remove_directory, storage_errors
from common.checkpoint.files import open_regular
from common.checkpoint.manifest_file import MANIFEST_NAME
from common.errors import CheckpointInvalid


@contextmanager
def hold(directory: Path) -> Iterator[Path]:
    """While it lasts, no process deletes this checkpoint. Raises CheckpointInvalid when it is gone or going."""
    path = directory / MANIFEST_NAME
    with open_regular(path) as descriptor:
        if not _lock(path, descriptor, fcntl.LOCK_SH):
            raise CheckpointInvalid(f"{directory} is being deleted")
        # It may have been deleted between the open and the lock.
        if not _is_still_there(path, descriptor):
            raise CheckpointInvalid(f"{directory} was deleted")
        yield directory


def delete_unless_held(directory: Path) -> bool:
    """Deletes a checkpoint that nobody holds; returns whether it did. Raises StorageFailed."""
    path = directory / MANIFEST_NAME
    try:
        with open_regular(path, os.O_RDWR) as descriptor:
            if not _lock(path, descriptor, fcntl.LOCK_EX):
                return False
            remove_directory(directory)
    except CheckpointInvalid:
        remove_directory(directory)  # without a manifest nobody can hold it
    return True


def _lock(path: Path, descriptor: int, kind: int) -> bool:
    with storage_errors(path, "cannot lock"):
        try:
            # Never waits: who deletes is about to be done, and who reads may read for long.
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
