"""Ledgers and spools written by hand, small enough to follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.audit.ledger_files import Entry, EpochLedger
from common.audit.records import Cut, Dropped, Frontier, Groups, Record, Saved, Start, Step
from common.audit.spools import SpoolView
from common.spool_file import SpoolContents


@dataclass(frozen=True)
class Row:
    """One group in a record."""

    sequence: int
    ordinal: int
    of: int = 2
    made: tuple[int, int] = (1, 0)
    """(run epoch, version)."""
    oldest: int | None = None
    """None: as `made`."""
    explorer: str = "e"


def groups(rows: Sequence[Row]) -> Groups:
    names = tuple(dict.fromkeys(row.explorer for row in rows))
    columns = [
        (
            names.index(row.explorer),
            row.sequence,
            row.ordinal,
            row.of,
            row.made[0],
            row.made[1] if row.oldest is None else row.oldest,
            row.made[1],
            2,
        )
        for row in rows
    ]
    return Groups(names, *np.array(columns, dtype=np.int64).reshape(len(rows), 8).T)


def rows_of(record: Step | Dropped) -> list[Row]:
    """The way back."""
    found = record.groups
    return [
        Row(
            int(found.sequence[i]),
            int(found.ordinal[i]),
            int(found.batch_groups[i]),
            (int(found.run_epoch[i]), int(found.newest[i])),
            int(found.oldest[i]) if found.oldest[i] != found.newest[i] else None,
            found.explorers[found.explorer[i]],
        )
        for i in range(len(found.sequence))
    ]


def start(epoch: int, resumed: tuple[int, int, int] | None = None, **fields: Any) -> Start:
    """`resumed`: (run epoch, step, record)."""
    known = fields.pop("frontiers", {})
    plain = Start("run", "main", epoch, Cut(*resumed) if resumed else None, frontiers(known), 2, "fixed", False, 1e9)
    return replace(plain, **fields)


def step(number: int, *rows: Row, applied: bool = True) -> Step:
    return Step(number, applied, groups(rows))


def dropped(number: int, reason: str, *rows: Row) -> Dropped:
    return Dropped(number, reason, groups(rows))


def saved(number: int, record: int, known: Mapping[str, tuple[int, int]]) -> Saved:
    return Saved(number, record, frontiers(known))


def frontiers(known: Mapping[str, tuple[int, int]]) -> dict[str, Frontier]:
    """(sequence number, groups) by explorer."""
    return {name: Frontier(*numbers) for name, numbers in known.items()}


def ledger(epoch: int, *records: Record) -> EpochLedger:
    return EpochLedger(epoch, tuple(Entry(number, number, record) for number, record in enumerate(records)))


def spool(
    acknowledged: int, acknowledged_groups: int, *batches: tuple[int, int], **fields: Any
) -> dict[str, SpoolView]:
    """Of explorer e, where nothing has moved between the two looks."""
    last = batches[-1][0] if batches else acknowledged
    contents = replace(SpoolContents("run", "e", last, acknowledged, acknowledged_groups, batches), **fields)
    return {contents.explorer_id: SpoolView(contents, contents)}
