"""Reading the files of a checkpoint without trusting what lies there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from common.checkpoint.atomic import storage_errors
from common.errors import CheckpointInvalid, StorageFailed

HASH_BLOCK_BYTES = 1 << 20
"""Read and hashed at once: fits the processor's second level cache."""


@contextmanager
def open_regular(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor of a regular file that is no symlink; never blocks on a FIFO or a device.

    Raises CheckpointInvalid when it is missing or something else, StorageFailed when it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _open_error(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointInvalid(f"{path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_error(path: Path, error: OSError) -> CheckpointInvalid | StorageFailed:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return CheckpointInvalid(f"{path} is missing")
    try:
        regular = stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        regular = True  # the first error says more than this one
    if not regular:
        return CheckpointInvalid(f"{path} is not a regular file")
    return StorageFailed(f"cannot open {path}: {error.strerror}", path=path)


def read_bounded(path: Path, limit: int) -> bytes:
    """The whole content of a small file. Raises CheckpointInvalid when it is larger than `limit` bytes."""
    with open_regular(path) as descriptor, storage_errors(path, "cannot read"):
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise CheckpointInvalid(f"{path} has {size} bytes, at most {limit} are allowed")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(limit)


def hash_file(path: Path) -> tuple[int, str]:
    """Size in bytes, and hex xxh3-128 of the content, read in blocks."""
    state = xxhash.xxh3_128()
    block = memoryview(bytearray(HASH_BLOCK_BYTES))
    size = 0
    with open_regular(path) as descriptor, storage_errors(path, "cannot read"):
        while count := os.readv(descriptor, [block]):
            state.update(block[:count])
            size += count
    return size, state.hexdigest()
