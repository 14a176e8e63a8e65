"""Paths that come from a peer or a file, kept under their root."""

from __future__ import annotations

import errno
import stat
from pathlib import Path, PurePosixPath

from common.errors import CheckpointInvalid, StorageFailed, UnsafePath

MAX_PATH_CHARACTERS = 1024
SHOWN_CHARACTERS = 80
"""Of a hostile path in an error: it travels in gRPC metadata, which is limited to 8 KiB."""


def resolve_under(root: Path, relative: str) -> Path:
    """The existing regular file or folder `relative` under `root`, all symlinks followed.

    Raises UnsafePath for an empty, absolute or overlong path, one with `..` or NUL, a symlink that leaves the root, and
    a target that is neither a regular file nor a folder; CheckpointInvalid when nothing is there; StorageFailed when
    the disk fails. Opens nothing, so a FIFO cannot block it.
    """
    shown = ascii(relative[:SHOWN_CHARACTERS])
    _check_text(relative, shown)
    try:
        base = root.resolve(strict=True)
        target = (base / relative).resolve(strict=True)
        mode = target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointInvalid(f"nothing at {shown} under {root}") from error
    except (RuntimeError, ValueError) as error:
        raise UnsafePath(f"{shown} under {root}: a loop of symlinks, or no path at all") from error
    except OSError as error:
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP}:
            raise UnsafePath(f"{shown} under {root}: {error.strerror}") from error
        raise StorageFailed(f"cannot look at {shown} under {root}: {error.strerror}") from error
    if not target.is_relative_to(base):
        raise UnsafePath(f"{shown} leaves {root}")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnsafePath(f"{shown} under {root} is neither a regular file nor a folder")
    return target


def _check_text(relative: str, shown: str) -> None:
    path = PurePosixPath(relative)
    if not path.parts or "\0" in relative:
        raise UnsafePath(f"{shown} names nothing")
    if len(relative) > MAX_PATH_CHARACTERS:
        raise UnsafePath(f"a path of {len(relative)} characters, at most {MAX_PATH_CHARACTERS}")
    if path.is_absolute() or ".." in path.parts:
        raise UnsafePath(f"{shown} is absolute or climbs with `..`")
