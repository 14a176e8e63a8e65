"""Files whose content is used again and again, and may be replaced meanwhile: certificates, keys, tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from common.config.plain_file import read_plain_file
from common.errors import ConfigError

log = structlog.get_logger(__name__)
Made = TypeVar("Made")

MAX_BYTES = 1 << 20
"""Of one file: a bundle of all public CAs has a fifth of that."""


class WatchedFiles(Generic[Made]):
    """What was made of the files, made again when they have changed.

    What cannot be made (a key that is not its certificate's yet, a file that is gone) is logged and leaves the last good
    one in use: files are replaced one after the other. Safe in any thread: gRPC asks from its own.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[list[bytes]], Made]) -> None:
        """`make` gets the contents, in order. Raises ConfigError when it cannot be made the first time."""
        self._paths = tuple(paths)
        self._make = make
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._made = make([read_plain_file(path, MAX_BYTES, str(path)) for path in self._paths])

    def current(self) -> Made:
        """The newest that could be made; the same object as long as nothing has changed."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._seen:
                # Noted before they are read: a change while we read is seen at the next call.
                self._seen = stamps
                self._make_again()
            return self._made

    def _make_again(self) -> None:
        shown = [str(path) for path in self._paths]
        try:
            self._made = self._make([read_plain_file(path, MAX_BYTES, str(path)) for path in self._paths])
        except ConfigError as error:
            log.warning("changed_files_not_used", files=shown, error=error.message)
        else:
            log.info("changed_files_used", files=shown)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
