"""The trainer's ledger: which groups each step was made of, written down as it happens; `tandem audit` reads it.

A line is given to the system, whole, before anything that follows from it: before a step is acknowledged and before the cut of
a checkpoint is taken. So a trainer that is killed leaves the lines of everything that anybody else knows of. For a power
failure a checkpoint's lines are synced before it becomes durable, and the line that tells of it before it is acknowledged.
A line is some ten numbers a group, and goes to the page cache alone: the event loop does not wait for the disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from common.audit.ledger_files import ledger_path
from common.audit.records import Dropped, Frontier, Groups, Record, Saved, Skipped, Start, Step, encode
from common.checkpoint.atomic import fsync_path
from common.errors import CheckpointInvalid, ConfigError, StorageFailed
from common.experience.received import ReceivedGroup


class Ledger(Protocol):
    """What leaves the buffer is written here, before it leaves."""

    @property
    def position(self) -> int:
        """Number of the newest record."""

    def step(self, step: int, groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int], *, applied: bool) -> None:
        """A step is finished; `batch_sizes` are those of the batches that the groups came in."""

    def dropped(
        self, reason: str, groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int], step: int | None = None
    ) -> None:
        """Groups are not trained by this step; None: the next one."""

    def skipped(self, explorer: str, through: int, groups: int, lost: int) -> None:
        """An explorer has forgotten more than this run's state knows."""


class NoLedger:
    """Where nobody asks later."""

    position = 0

    def step(self, step: int, groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int], *, applied: bool) -> None:
        """Nothing."""

    def dropped(
        self, reason: str, groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int], step: int | None = None
    ) -> None:
        """Nothing."""

    def skipped(self, explorer: str, through: int, groups: int, lost: int) -> None:
        """Nothing."""


class LedgerFile:
    """The ledger of one start of the trainer, on disk.

    Every method raises StorageFailed when the disk is full or broken, and so does every later call: a checkpoint that
    covers what is not written must not become durable.
    """

    def __init__(self, stage_folder: Path, start: Start) -> None:
        """Creates the file, durably, with its first record. Raises ConfigError when this run epoch was used already."""
        self._path = ledger_path(stage_folder, start.epoch)
        self._lock = threading.Lock()
        self._broken: StorageFailed | None = None
        self._next = 0
        self._step = start.resumed.step if start.resumed is not None else 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise ConfigError(
                f"{self._path} is there already, but the run's checkpoints know of no run epoch {start.epoch}: were they "
                "removed? Give the run another name, or remove the whole folder of the stage"
            ) from None
        except OSError as error:
            raise self._failure(error) from error
        self._append(start)
        self.sync()
        try:
            fsync_path(self._path.parent)
        except OSError as error:
            raise self._failure(error) from error

    @property
    def position(self) -> int:
        """Number of the newest record."""
        return self._next - 1

    def step(self, step: int, groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int], *, applied: bool) -> None:
        """See `Ledger`."""
        self._append(Step(step, applied, _columns(groups, batch_sizes)))
        self._step = step

    def dropped(
        self, reason: str, groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int], step: int | None = None
    ) -> None:
        """See `Ledger`."""
        self._append(Dropped(self._step + 1 if step is None else step, reason, _columns(groups, batch_sizes)))

    def skipped(self, explorer: str, through: int, groups: int, lost: int) -> None:
        """See `Ledger`."""
        self._append(Skipped(explorer, through, groups, lost))

    def saved(self, step: int, state: Mapping[str, Any]) -> None:
        """A checkpoint with this state is durable; the record is too, on return. Blocks, from any thread."""
        self._append(Saved(step, int(state["source"]["ledger"]), frontiers(state)))
        self.sync()

    def sync(self) -> None:
        """Returns when everything that was written is durable. Blocks, from any thread."""
        if self._broken is not None:
            raise self._broken
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Closes the file. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, record: Record) -> None:
        # The loop writes and, when a checkpoint is durable, the disk's thread.
        with self._lock:
            if self._broken is not None:
                raise self._broken
            line = encode(self._next, record)
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._file, line[written:])
            except OSError as error:
                raise self._failure(error) from error
            self._next += 1

    def _failure(self, error: OSError) -> StorageFailed:
        self._broken = StorageFailed(f"ledger {self._path}: {error.strerror}", path=self._path)
        return self._broken


def frontiers(state: Mapping[str, Any]) -> dict[str, Frontier]:
    """Of a checkpoint's state, by explorer. Raises CheckpointInvalid."""
    try:
        return {
            name: Frontier(int(account["frontier"]), int(account["groups_below_frontier"]))
            for name, account in state["source"]["accounts"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointInvalid(f"the accounts in the checkpoint are malformed: {error}") from error


def _columns(groups: Sequence[ReceivedGroup], batch_sizes: Sequence[int]) -> Groups:
    names = tuple(dict.fromkeys(group.explorer_id for group in groups))
    index = {name: number for number, name in enumerate(names)}
    columns = np.array(
        [
            (
                index[group.explorer_id],
                group.sequence,
                group.ordinal,
                size,
                group.run_epoch,
                group.oldest_version,
                group.newest_version,
                group.columns.experience_count,
            )
            for group, size in zip(groups, batch_sizes, strict=True)
        ],
        dtype=np.int64,
    ).reshape(len(groups), 8)
    return Groups(names, *columns.T)
