"""Folders and files that appear on disk whole and durable, or not at all.

The order is what makes it so: write aside, fsync every file and folder, rename, fsync the parent. Renames are atomic on
POSIX file systems; the fsyncs keep a rename from reaching the disk before the data.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import StorageFailed

ASIDE = ".tmp-"
"""Prefix of what is being written or deleted; left behind only by a crash."""


@contextmanager
def storage_errors(path: Path, doing: str) -> Iterator[None]:
    """Turns an OSError inside into StorageFailed naming `path`."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{doing} {path}: {error.strerror or error}", path=path) from error


def fsync_path(path: Path) -> None:
    """Waits until a file's data, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_directory(root: Path, name: str) -> Iterator[Path]:
    """Yields an empty folder to fill; at the end it becomes `root/name`, durably.

    On any exception the folder is removed again, and what was in `root` before is untouched; an OSError is raised as
    StorageFailed naming the path. `root/name` must not exist.
    """
    final = root / name
    with storage_errors(final, "cannot write"):
        root.mkdir(parents=True, exist_ok=True)
        aside = _aside(root, name)
        aside.mkdir()
        placed = aside
        try:
            yield aside
            fsync_tree(aside)
            if final.exists():
                raise FileExistsError(f"{final} exists already")  # noqa: TRY301 - the same clean-up as for the rest
            os.rename(aside, final)  # noqa: PTH104 - every step to the disk goes through `os`
            placed = final
            fsync_path(root)
        except BaseException as error:
            # A name that may not survive a power failure is taken back, so that failed means: not there.
            _remove_noting(placed, error)
            raise


def fsync_tree(folder: Path) -> None:
    """Makes all files and folders below durable, and the folder itself last."""
    for parent, _, files in os.walk(folder, topdown=False):
        for file in files:
            fsync_path(Path(parent, file))
        fsync_path(Path(parent))


def replace_file(path: Path, content: bytes) -> None:
    """Durably puts `content` in place of the file; a reader sees the old content or the new. Raises StorageFailed."""
    with storage_errors(path, "cannot write"):
        aside = _aside(path.parent, path.name)
        try:
            aside.write_bytes(content)
            fsync_path(aside)
            os.rename(aside, path)  # noqa: PTH104 - as above
        except BaseException as error:
            _remove_noting(aside, error)
            raise
        fsync_path(path.parent)


def remove_directory(folder: Path) -> None:
    """Deletes a folder so that no half of it is ever seen under its name. Raises StorageFailed."""
    with storage_errors(folder, "cannot delete"):
        aside = _aside(folder.parent, folder.name)
        os.rename(folder, aside)  # noqa: PTH104 - as above
        shutil.rmtree(aside)


def sweep(root: Path) -> list[str]:
    """Removes what a crash left half written or half deleted; returns the names. Raises StorageFailed.

    For the one writer of `root`, before its first write: it would remove what another process is writing just now.
    """
    if not root.is_dir():
        return []
    removed = []
    with storage_errors(root, "cannot clean up"):
        for path in sorted(root.iterdir()):
            if path.name.startswith(ASIDE):
                _remove(path)
                removed.append(path.name)
    return removed


def _aside(root: Path, name: str) -> Path:
    return root / f"{ASIDE}{name}-{secrets.token_hex(4)}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_noting(path: Path, error: BaseException) -> None:
    """Removes `path`; a failure to do so is noted on the error that is on its way out, which matters more."""
    try:
        _remove(path)
    except OSError as second:
        error.add_note(f"and {path} could not be removed: {second}")
