"""What an explorer has made and the trainer has not acknowledged, durable: one SQLite file.

A batch and the state that the explorer goes on from (task cursor, ordinals, RNG, policy version) are written in one
transaction, before the batch is sent. So after a crash at any moment every sequence number names one batch for ever, and
no task is run twice under two ordinals or skipped.

A rollback journal, not a write-ahead log: a log that meets a full disk can neither be copied into the file, which would
have to grow, nor take the few pages of an acknowledgement, which would free room. So it stays full for ever (it did, on
a tmpfs of 8 MB). Undoing a failed append from a rollback journal gives its bytes back at once, and large batches are
written once instead of twice. Kept and zeroed (PERSIST), the journal also keeps its room, which is reserved at the start, so
that acknowledging works on a full disk; and `synchronous = FULL` syncs that zeroing: a commit survives a power failure
(https://www.sqlite.org/pragma.html).
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import xxhash

from common.errors import ProtocolViolation, RunMismatch, StaleEpoch, StorageFailed
from common.spool_file import APPLICATION_ID, FORMAT_VERSION, SCHEMA, error_code

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

LOCK_SECONDS = 5.0
"""A predecessor that is being killed still holds the file for a moment."""
JOURNAL_BYTES = 1 << 20
"""Reserved: acknowledging `ACKNOWLEDGED_AT_ONCE` batches journals one or two 4 KiB pages for each."""
ACKNOWLEDGED_AT_ONCE = 64
MAX_INTEGER = (1 << 63) - 1
"""SQLite's integers are int64; the wire's are uint64."""


@dataclass(slots=True)
class _Counts:
    """The durable numbers, as of the last commit."""

    incarnation: int
    last_sequence: int
    acknowledged: int
    acknowledged_groups: int
    acknowledged_by: int
    """Run epoch of the trainer that acknowledged last."""
    acknowledged_step: int
    """Policy step of the newest token in what was acknowledged last."""
    run_epoch: int
    pending_bytes: int
    pending_groups: int


class Spool:
    """One explorer's batches in order of sequence numbers, from 1 without gaps.

    Every method blocks; call them from one thread at a time. All raise StorageFailed when the disk is full or broken;
    nothing of the failed call is kept then, and what was committed before is still good. After a full disk the spool
    goes on as soon as there is room; after an I/O error every later call fails too, since nobody knows what the kernel
    dropped.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, counts: _Counts) -> None:
        self._path = path
        self._connection = connection
        self._counts = counts
        self._broken: StorageFailed | None = None

    @classmethod
    def open(cls, path: Path, run_name: str, explorer_id: str) -> Spool:
        """Opens the file, or creates it and its folder, and counts one more incarnation.

        Raises RunMismatch for the file of another run or explorer, StorageFailed for one that is corrupt, no spool, or
        open in another process.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = _connect(path)
            try:
                _create_or_check(connection, path, run_name, explorer_id)
                counts = _start_incarnation(connection)
                _reserve_journal(path)
                _sync_folder(path.parent)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise StorageFailed(f"spool {path}: {error}") from error
        return cls(path, connection, counts)

    @property
    def incarnation(self) -> int:
        """How often this spool was opened, this time included; from 1."""
        return self._counts.incarnation

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest batch, also when it was pruned; 0: none was ever made."""
        return self._counts.last_sequence

    @property
    def acknowledged(self) -> int:
        """Highest sequence number that was acknowledged; batches up to it are gone."""
        return self._counts.acknowledged

    @property
    def acknowledged_groups(self) -> int:
        """Groups in the batches that were acknowledged."""
        return self._counts.acknowledged_groups

    def acknowledged_beyond(self, run_epoch: int, step: int) -> bool:
        """Whether a trainer before this epoch acknowledged what was made on this version or a later one.

        Then the epoch's trainer went on from before that one's newest checkpoint: it would have trained such a batch after
        this step.
        """
        counts = self._counts
        return run_epoch > counts.acknowledged_by > 0 and step <= counts.acknowledged_step

    @property
    def run_epoch(self) -> int:
        """Highest run epoch that was ever observed; 0: none."""
        return self._counts.run_epoch

    @property
    def pending_batches(self) -> int:
        """Batches that are not acknowledged."""
        return self._counts.last_sequence - self._counts.acknowledged

    @property
    def pending_bytes(self) -> int:
        """Bytes of the batches that are not acknowledged."""
        return self._counts.pending_bytes

    @property
    def pending_groups(self) -> int:
        """Groups of the batches that are not acknowledged."""
        return self._counts.pending_groups

    def append(
        self,
        make_batch: Callable[[int], bytes | bytearray],
        groups: int,
        state: Mapping[str, Json],
        newest_step: int = 0,
        tasks: Sequence[int] = (),
    ) -> tuple[int, bytes | bytearray]:
        """Makes the batch of the next sequence number and commits it with the state (see `save_state`).

        `newest_step` is the policy step of the newest token in it, `tasks` are the positions of its groups' tasks. Returns
        the sequence number and the batch. When `make_batch` raises, nothing was written and the number is free.
        """
        sequence = self._counts.last_sequence + 1
        data = make_batch(sequence)
        entries = _entries(state)
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    sequence,
                    groups,
                    newest_step,
                    json.dumps(list(tasks)),
                    time.time(),
                    xxhash.xxh3_128_digest(data),
                    data,
                ),
            )
            connection.execute("UPDATE spool SET last_sequence = ?", (sequence,))
            _write_state(connection, entries)
        self._counts.last_sequence = sequence
        self._counts.pending_bytes += len(data)
        self._counts.pending_groups += groups
        return sequence, data

    def save_state(self, state: Mapping[str, Json]) -> None:
        """Commits these keys; others keep their values. Raises ValueError for NaN and infinity, which JSON has not."""
        entries = _entries(state)
        with self._transaction() as connection:
            _write_state(connection, entries)

    def load_state(self) -> dict[str, Any]:
        """All keys with their newest committed values; empty in a new spool."""
        with self._guarded() as connection:
            rows = connection.execute("SELECT key, value FROM state").fetchall()
        return {key: json.loads(value) for key, value in rows}

    def held_tasks(self) -> list[int]:
        """Positions of the tasks of all groups that are not acknowledged."""
        with self._guarded() as connection:
            rows = connection.execute("SELECT tasks FROM batches").fetchall()
        return [int(task) for (tasks,) in rows for task in json.loads(tasks)]

    def read_after(self, sequence: int, limit: int) -> list[tuple[int, bytes]]:
        """At most `limit` batches after this sequence number, in order; those that were acknowledged are gone.

        Raises ProtocolViolation for a number that no batch has yet: it would wait for what was never made.
        """
        self._refuse_future(sequence)
        with self._guarded() as connection:
            rows = connection.execute(
                "SELECT sequence, xxh3, bytes FROM batches WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (sequence, limit),
            ).fetchall()
        for number, digest, data in rows:
            if xxhash.xxh3_128_digest(data) != digest:
                raise StorageFailed(f"spool {self._path}: batch {number} is corrupt on disk")
        return [(number, data) for number, _, data in rows]

    def acknowledge(self, through: int) -> None:
        """Forgets the batches up to this sequence number; repeating it, or a lower number, changes nothing.

        Raises ProtocolViolation for a number that no batch has yet.
        """
        self._refuse_future(through)
        while self._counts.acknowledged < through:
            self._forget(min(through, self._counts.acknowledged + ACKNOWLEDGED_AT_ONCE))

    def observe_epoch(self, epoch: int) -> None:
        """Commits a higher run epoch before anything is done for its sender.

        Raises StaleEpoch for one below the highest that was ever observed, also before a restart.
        """
        if epoch < self._counts.run_epoch:
            raise StaleEpoch(
                f"run epoch {epoch}, but {self._counts.run_epoch} was seen", epoch=epoch, newest=self._counts.run_epoch
            )
        if epoch > MAX_INTEGER:
            raise ProtocolViolation(f"run epoch {epoch} is beyond 2^63 - 1")
        if epoch == self._counts.run_epoch:
            return
        with self._transaction() as connection:
            connection.execute("UPDATE spool SET run_epoch = ?", (epoch,))
        self._counts.run_epoch = epoch

    def close(self) -> None:
        """Closes the file; what was committed stays."""
        self._connection.close()

    def _forget(self, through: int) -> None:
        with self._transaction() as connection:
            freed, groups, step = connection.execute(
                "SELECT total(length(bytes)), total(group_count), max(newest_step) FROM batches WHERE sequence <= ?",
                (through,),
            ).fetchone()
            connection.execute("DELETE FROM batches WHERE sequence <= ?", (through,))
            connection.execute(
                "UPDATE spool SET acknowledged = ?, acknowledged_groups = acknowledged_groups + ?, "
                "acknowledged_epoch = run_epoch, acknowledged_step = ?",
                (through, int(groups), step),
            )
        self._counts.acknowledged = through
        self._counts.acknowledged_groups += int(groups)
        self._counts.acknowledged_by = self._counts.run_epoch
        self._counts.acknowledged_step = int(step)
        self._counts.pending_bytes -= int(freed)
        self._counts.pending_groups -= int(groups)

    def _refuse_future(self, sequence: int) -> None:
        if sequence > self._counts.last_sequence:
            raise ProtocolViolation(
                f"sequence number {sequence}, but the newest batch is {self._counts.last_sequence}",
                sequence=sequence,
                last_sequence=self._counts.last_sequence,
            )

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        if self._broken is not None:
            raise self._broken
        try:
            yield self._connection
        except sqlite3.ProgrammingError:
            raise  # ours: a closed spool, a second thread
        except sqlite3.Error as error:
            failure = StorageFailed(f"spool {self._path}: {error}")
            # The low byte is the primary code, https://www.sqlite.org/rescode.html#extrc.
            if (error_code(error) & 0xFF) in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT}:
                self._broken = failure
            raise failure from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guarded() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # SQLite may have rolled back by itself, as it does when the disk is full.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _connect(path: Path) -> sqlite3.Connection:
    # The worker thread that uses the spool need not be the one that opened it; `Spool` asks for one thread at a time.
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    # An exclusive lock, which the kernel drops with the process, keeps a second explorer out.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = PERSIST")
    # Some builds overwrite what is deleted by default: every acknowledgement would rewrite, and journal, its batches.
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _create_or_check(connection: sqlite3.Connection, path: Path, run_name: str, explorer_id: str) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        connection.executescript(SCHEMA)
    elif (application, version) != (APPLICATION_ID, FORMAT_VERSION):
        raise StorageFailed(f"{path} is no spool of format {FORMAT_VERSION}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StorageFailed(f"spool {path} is corrupt: {verdict}")
    connection.execute("BEGIN IMMEDIATE")
    owner = connection.execute("SELECT run_name, explorer_id FROM spool").fetchone()
    if owner is None:
        connection.execute("INSERT INTO spool VALUES (?, ?, 0, 0, 0, 0, 0, 0, 0)", (run_name, explorer_id))
    connection.execute("COMMIT")
    if owner not in {None, (run_name, explorer_id)}:
        raise RunMismatch(
            f"spool {path} belongs to explorer {owner[1]!r} of run {owner[0]!r}, not to {explorer_id!r} of {run_name!r}"
        )


def _start_incarnation(connection: sqlite3.Connection) -> _Counts:
    connection.execute("UPDATE spool SET incarnation = incarnation + 1")
    numbers = connection.execute(
        "SELECT incarnation, last_sequence, acknowledged, acknowledged_groups, acknowledged_epoch, acknowledged_step, "
        "run_epoch FROM spool"
    ).fetchone()
    size, groups = connection.execute("SELECT total(length(bytes)), total(group_count) FROM batches").fetchone()
    incarnation, last, acknowledged, gone, by, step, epoch = numbers
    return _Counts(incarnation, last, acknowledged, gone, by, step, epoch, int(size), int(groups))


def _reserve_journal(path: Path) -> None:
    """Extends the journal with zeros, which is how SQLite leaves a journal that has nothing to undo."""
    descriptor = os.open(f"{path}-journal", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.fstat(descriptor).st_size < JOURNAL_BYTES:
            os.posix_fallocate(descriptor, 0, JOURNAL_BYTES)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Makes the file's name durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(state: Mapping[str, Json]) -> list[tuple[str, str]]:
    return [(key, json.dumps(value, allow_nan=False)) for key, value in state.items()]


def _write_state(connection: sqlite3.Connection, entries: list[tuple[str, str]]) -> None:
    connection.executemany(
        "INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", entries
    )
