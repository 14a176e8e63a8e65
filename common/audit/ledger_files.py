"""A stage's ledgers on disk: one file for each start of its trainer."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from common.audit.records import Record, Start, decode
from common.checkpoint.atomic import storage_errors
from common.checkpoint.files import open_regular
from common.errors import CheckpointInvalid, MalformedData

FOLDER = "ledger"
NAME = re.compile(r"epoch-(\d{6,18})\.jsonl", re.ASCII)
MAX_FILES = 100_000
MAX_LINE_BYTES = 64 << 20
"""A step of 200,000 groups has ten."""
MAX_START_BYTES = 16 << 20
"""65,536 explorers' frontiers take less."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and where it stands."""

    line: int
    """From 0: the number that it should have."""
    number: int
    """The number that it has."""
    record: Record


@dataclass(frozen=True, slots=True)
class CorruptLine:
    """A line that is no record."""

    line: int
    """From 0."""
    reason: str


@dataclass(frozen=True, slots=True)
class EpochLedger:
    """What one start of the trainer wrote."""

    epoch: int
    """As its file is named."""
    entries: tuple[Entry, ...]
    corrupt: tuple[CorruptLine, ...] = ()

    @property
    def start(self) -> Start | None:
        """Its first record; None when the trainer was killed before that was on the disk."""
        first = self.entries[0].record if self.entries else None
        return first if isinstance(first, Start) else None


def newest_epoch(stage_folder: Path) -> int:
    """The highest run epoch that has a ledger here; 0: none. Raises StorageFailed."""
    folder = stage_folder / FOLDER
    with storage_errors(folder, "cannot list"):
        names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 - names are all that is needed
    return max((int(match[1]) for match in map(NAME.fullmatch, names) if match), default=0)


def read_beginnings(stage_folder: Path) -> dict[int, tuple[int, int]]:
    """Of each start whose first record can be read: (run epoch, step) that it went on from; (0, 0): from the initial weights.

    Raises StorageFailed.
    """
    found = {}
    folder = stage_folder / FOLDER
    with storage_errors(folder, "cannot list"):
        names = sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208 - names are all that is needed
    for name in names[:MAX_FILES]:
        match = NAME.fullmatch(name)
        if match is None:
            continue
        try:
            with open_regular(folder / name) as descriptor:
                line = os.pread(descriptor, MAX_START_BYTES, 0).partition(b"\n")[0]
            _, record = decode(line)
        except (CheckpointInvalid, ValueError):
            continue
        if isinstance(record, Start):
            resumed = record.resumed
            found[int(match[1])] = (resumed.epoch, resumed.step) if resumed is not None else (0, 0)
    return found


def ledger_path(stage_folder: Path, epoch: int) -> Path:
    """Where the trainer with this run epoch writes."""
    return stage_folder / FOLDER / f"epoch-{epoch:06d}.jsonl"


def read_ledgers(stage_folder: Path) -> tuple[EpochLedger, ...]:
    """All ledgers of a stage, by run epoch. A last line without its end is left out: it is being written, or was torn.

    Raises MalformedData or CheckpointInvalid for what is no ledger or is beyond all bounds, StorageFailed when the disk fails.
    """
    folder = stage_folder / FOLDER
    found: list[tuple[int, Path]] = []
    with storage_errors(folder, "cannot list"), os.scandir(folder) as listing:
        for entry in listing:
            match = NAME.fullmatch(entry.name)
            if match is not None:
                found.append((int(match[1]), folder / entry.name))
            if len(found) > MAX_FILES:
                raise MalformedData(f"{folder} has more than {MAX_FILES} ledgers")
    return tuple(_read(path, epoch) for epoch, path in sorted(found))


def _read(path: Path, epoch: int) -> EpochLedger:
    entries: list[Entry] = []
    corrupt: list[CorruptLine] = []
    with (
        open_regular(path) as descriptor,
        storage_errors(path, "cannot read"),
        os.fdopen(os.dup(descriptor), "rb") as file,
    ):
        line = 0
        while (text := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
            try:
                entries.append(Entry(line, *decode(text[:-1])))
            except ValueError as error:
                corrupt.append(CorruptLine(line, str(error)))
            line += 1
    if len(text) > MAX_LINE_BYTES:
        raise MalformedData(f"{path}: line {line + 1} has more than {MAX_LINE_BYTES} bytes")
    return EpochLedger(epoch, tuple(entries), tuple(corrupt))
