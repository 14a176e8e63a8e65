"""The file in which an explorer keeps what it made until it is acknowledged: its tables, and how others look into it.

The explorer itself reads and writes it through `explorer_service.spool`, and holds its lock as long as it runs.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.checkpoint.atomic import storage_errors
from common.errors import StorageFailed

APPLICATION_ID = 0x54444D53
"""'TDMS' in the file's header: tells a spool from any other SQLite file."""
FORMAT_VERSION = 4
SCHEMA = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
CREATE TABLE spool (
    run_name TEXT NOT NULL, explorer_id TEXT NOT NULL, incarnation INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL, acknowledged_groups INTEGER NOT NULL,
    acknowledged_epoch INTEGER NOT NULL, acknowledged_step INTEGER NOT NULL, run_epoch INTEGER NOT NULL
);
CREATE TABLE batches (
    sequence INTEGER PRIMARY KEY, group_count INTEGER NOT NULL, newest_step INTEGER NOT NULL, tasks TEXT NOT NULL,
    created REAL NOT NULL, xxh3 BLOB NOT NULL, bytes BLOB NOT NULL
);
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
COMMIT;
"""

MAX_BATCHES = 10_000_000
LOOK_SECONDS = 10.0
"""For a spool that changes all the time, and for what a foreign file may make SQLite do."""
TICK_SECONDS = 0.02
"""Times of changes are kept to a tick of the kernel's clock, 10 ms at most."""
_STEPS_BETWEEN_LOOKS = 100_000
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""A journal that begins so has something to undo, https://www.sqlite.org/fileformat.html#the_rollback_journal."""


@dataclass(frozen=True, slots=True)
class SpoolContents:
    """A spool at one moment."""

    run_name: str
    explorer_id: str
    last_sequence: int
    """Of the newest batch that was ever made; 0: none."""
    acknowledged: int
    """Batches up to it are gone."""
    acknowledged_groups: int
    """Groups in these."""
    batches: tuple[tuple[int, int], ...]
    """(sequence number, groups) of the others, in order."""

    @property
    def produced(self) -> int:
        """Groups that were ever in a batch."""
        return self.acknowledged_groups + sum(groups for _, groups in self.batches)


def read_spool(path: Path) -> SpoolContents | None:
    """Looks into a spool without changing it, also while its explorer runs: no lock of its is waited for.

    None: its explorer is just making it.

    To be called from another process than the explorer's. What a crash left half written is undone in a copy. Raises
    StorageFailed for what is no spool, cannot be read, or changes all the time.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise StorageFailed(f"{path} is not a regular file")
        try:
            return _contents(path, "mode=ro")
        except sqlite3.OperationalError as error:
            code = error_code(error)
            if code & 0xFF == sqlite3.SQLITE_BUSY:
                return _read_running(path)
            if code != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            with _copied(path) as copy:
                return _contents(copy, "mode=rw")
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        raise StorageFailed(f"spool {path}: {error}", path=path) from error


def error_code(error: sqlite3.Error) -> int:
    """SQLite's extended result code, https://www.sqlite.org/rescode.html.

    What Python's module raises by itself has none: it could not make sense of what is stored, which is corrupt then.
    """
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT))


def _read_running(path: Path) -> SpoolContents | None:
    """Reads past the lock, again until nothing was written meanwhile."""
    deadline = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < deadline:
        before = _stamp(path)
        time.sleep(TICK_SECONDS)
        # What is written from here on gets another time than what was written until `before`.
        if _stamp(path) != before or _is_in_transaction(path):
            continue
        try:
            contents = _contents(path, "mode=ro&immutable=1")
        except sqlite3.DatabaseError:
            if _stamp(path) == before:
                raise
            continue
        if _stamp(path) == before:
            return contents
    raise StorageFailed(f"spool {path}: its explorer writes all the time, or stands still while writing", path=path)


def _contents(path: Path, how: str) -> SpoolContents | None:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=0)) as connection:
        deadline = time.monotonic() + LOOK_SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        ).fetchone()
        if (application, version, tables) == (0, 0, (0,)):
            return None
        if (application, version, tables) != (APPLICATION_ID, FORMAT_VERSION, (3,)):
            raise StorageFailed(f"{path} is no spool of format {FORMAT_VERSION}")
        connection.execute("BEGIN")
        numbers = connection.execute(
            "SELECT run_name, explorer_id, last_sequence, acknowledged, acknowledged_groups FROM spool"
        ).fetchone()
        # The bytes of a batch lie on other pages, which are not read.
        batches = connection.execute(
            "SELECT sequence, group_count FROM batches ORDER BY sequence LIMIT ?", (MAX_BATCHES + 1,)
        ).fetchall()
    if numbers is None:
        return None
    if len(batches) > MAX_BATCHES:
        raise StorageFailed(f"spool {path}: more than {MAX_BATCHES} batches")
    run, explorer, *counts = numbers
    last, acknowledged, groups = (int(count) for count in counts)
    return SpoolContents(
        str(run), str(explorer), last, acknowledged, groups, tuple((int(s), int(g)) for s, g in batches)
    )


def _stamp(path: Path) -> list[tuple[int, int]]:
    found = [path.stat(), Path(f"{path}-journal").stat()]
    return [(status.st_size, status.st_mtime_ns) for status in found]


def _is_in_transaction(path: Path) -> bool:
    with Path(f"{path}-journal").open("rb") as journal:
        return journal.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tandem-spool-") as folder, storage_errors(path, "cannot copy"):
        copy = Path(folder, "spool")
        shutil.copyfile(path, copy)
        shutil.copyfile(f"{path}-journal", f"{copy}-journal")
        yield copy
