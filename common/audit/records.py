"""The records of a trainer's ledger, and their lines.

Every start of the trainer writes a file of its own, `<stage>/ledger/epoch-000003.jsonl`. A line is one JSON object: `n`, its number
within the file from 0; `kind`; the fields of that kind; and last `xxh3`, the hash of everything before it on the line.

Shape letter: `G` groups of one record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from common.checkpoint.strict_json import parse_strictly

FORMAT = 1
"""Raised when the meaning of a record changes; another one is refused."""
MAX_NAME = 256
MAX_EXPLORERS = 65_536
MAX_INTEGER = (1 << 63) - 1
_HASH = b',"xxh3":"'

Column: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups that left together, as columns: int64 `[G]` each."""

    explorers: tuple[str, ...]
    """The names that `explorer` counts from 0."""
    explorer: Column
    """Who made it."""
    sequence: Column
    """The batch that it came in, from 1."""
    ordinal: Column
    """Its place in its explorer's stream of groups, from 0."""
    batch_groups: Column
    """How many groups that batch holds."""
    run_epoch: Column
    """Run epoch of the weights that made it; the lowest, if several did."""
    oldest: Column
    """Policy step of its oldest token."""
    newest: Column
    """Policy step of its newest token."""
    experiences: Column
    """How many experiences it holds."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment of an earlier start: what came after it is not part of this run any more."""

    epoch: int
    """Run epoch of that start."""
    step: int
    """Trainer steps done."""
    record: int
    """Number of the last record before it."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Up to where everything of one explorer was trained or dropped."""

    sequence: int
    """The last batch of which no group is left; 0: none."""
    groups: int
    """Groups in the batches up to it."""


@dataclass(frozen=True, slots=True)
class Start:
    """The trainer starts. Always the first record."""

    run: str
    """Name of the run."""
    stage: str
    """Name of the stage."""
    epoch: int
    """The run epoch that it claimed."""
    resumed: Cut | None
    """Where the checkpoint was taken from which it goes on; None: from the initial weights."""
    frontiers: Mapping[str, Frontier]
    """By explorer, as that checkpoint has them."""
    max_staleness: int | None
    """Steps; what is older is dropped. None: no bound."""
    style: str
    """`sync.style`."""
    acknowledges_steps: bool
    """Whether a finished step is acknowledged, and not only a durable checkpoint."""
    time: float
    """Unix seconds."""
    reproducible: bool = False
    """Whether lost steps are made again to the bit, so that a version is known by its step alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A train step is finished."""

    step: int
    """Its number, from 1."""
    applied: bool
    """False: the gradient was not finite, and the weights are as before."""
    groups: Groups
    """What it was made of."""


@dataclass(frozen=True, slots=True, eq=False)
class Dropped:
    """Groups are not trained."""

    step: int
    """The step that they would have been part of."""
    reason: str
    """Why, in one word."""
    groups: Groups


@dataclass(frozen=True, slots=True)
class Skipped:
    """An explorer has forgotten what was acknowledged under a checkpoint that this start did not go on from."""

    explorer: str
    through: int
    """Sequence number up to which it has."""
    groups: int
    """Groups up to there."""
    lost: int
    """Of these, those that this state was neither trained on nor has dropped."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is durable."""

    step: int
    """Trainer steps done."""
    record: int
    """Number of the last record before it was taken; this one comes later, as writing takes a while."""
    frontiers: Mapping[str, Frontier]
    """By explorer."""


Record: TypeAlias = Start | Step | Dropped | Skipped | Saved

_KINDS: dict[str, type[Record]] = {
    "start": Start,
    "step": Step,
    "dropped": Dropped,
    "skipped": Skipped,
    "saved": Saved,
}
_NAMES = {record: name for name, record in _KINDS.items()}
COLUMNS = tuple(field.name for field in fields(Groups) if field.name != "explorers")


def kind_of(record: Record) -> str:
    """The word that its line has for `kind`."""
    return _NAMES[type(record)]


def encode(number: int, record: Record) -> bytes:
    """The record's line, its end included."""
    values = {field.name: _plain(getattr(record, field.name)) for field in fields(record)}
    content: dict[str, Any] = {"n": number, "kind": kind_of(record), **values}
    if isinstance(record, Start):
        content["format"] = FORMAT
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return body + _HASH + xxhash.xxh3_64_hexdigest(body).encode() + b'"}\n'


def decode(line: bytes) -> tuple[int, Record]:
    """The number and the record of a line without its end. Raises ValueError for whatever is wrong with it."""
    body, _, end = line.rpartition(_HASH)
    if end != xxhash.xxh3_64_hexdigest(body).encode() + b'"}':
        raise ValueError("its hash does not match")
    content = parse_strictly(body + b"}")
    if not isinstance(content, dict):
        raise ValueError("no object")  # noqa: TRY004 - one class for everything that is wrong with a line
    kind = content.get("kind")
    try:
        return _count(content["n"]), _record(kind, content)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no record of kind {ascii(kind)[:40]}: {type(error).__name__} {ascii(error)[:80]}") from error


def _record(kind: object, content: Mapping[str, Any]) -> Record:
    match kind:
        case "start":
            return _start(content)
        case "step":
            if type(content["applied"]) is not bool:
                raise ValueError("`applied` is neither true nor false")
            return Step(_count(content["step"]), content["applied"], _groups(content["groups"]))
        case "dropped":
            return Dropped(_count(content["step"]), _name(content["reason"]), _groups(content["groups"]))
        case "skipped":
            numbers = (_count(content[key]) for key in ("through", "groups", "lost"))
            return Skipped(_name(content["explorer"]), *numbers)
        case "saved":
            return Saved(_count(content["step"]), _count(content["record"]), _frontiers(content["frontiers"]))
        case _:
            raise ValueError(f"unknown kind {ascii(kind)[:40]}")


def _start(content: Mapping[str, Any]) -> Start:
    if content["format"] != FORMAT:
        raise ValueError(f"format {ascii(content['format'])[:40]}, known is {FORMAT}")
    resumed, bound = content["resumed"], content["max_staleness"]
    return Start(
        run=_name(content["run"]),
        stage=_name(content["stage"]),
        epoch=_count(content["epoch"]),
        resumed=None if resumed is None else Cut(*(_count(resumed[key]) for key in ("epoch", "step", "record"))),
        frontiers=_frontiers(content["frontiers"]),
        max_staleness=None if bound is None else _count(bound),
        style=_name(content["style"]),
        acknowledges_steps=bool(content["acknowledges_steps"]),
        time=float(content["time"]),
        reproducible=bool(content.get("reproducible", False)),
    )


def _groups(content: Mapping[str, Any]) -> Groups:
    names = tuple(_name(name) for name in content["explorers"])
    columns = {name: _column(content[name]) for name in COLUMNS}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of different lengths")
    if len(names) > MAX_EXPLORERS or len(set(names)) != len(names) or (columns["explorer"] >= len(names)).any():
        raise ValueError("names of explorers that do not fit")
    return Groups(names, **columns)


def _column(values: object) -> Column:
    if not isinstance(values, list):
        raise TypeError("a column is a list")
    column = np.array(values or np.zeros(0, np.int64))
    if column.dtype != np.int64 or column.ndim != 1 or (column < 0).any():
        raise ValueError("a column holds counts")
    return column


def _frontiers(content: Mapping[str, Sequence[Any]]) -> dict[str, Frontier]:
    if len(content) > MAX_EXPLORERS:
        raise ValueError("too many explorers")
    return {_name(name): Frontier(_count(sequence), _count(groups)) for name, (sequence, groups) in content.items()}


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise ValueError(f"{ascii(value)[:40]} is no name")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ValueError(f"{ascii(value)[:40]} is not a count")
    return value


def _plain(value: object) -> Any:
    match value:
        case Groups():
            return {"explorers": value.explorers, **{name: getattr(value, name).tolist() for name in COLUMNS}}
        case Cut():
            return {"epoch": value.epoch, "step": value.step, "record": value.record}
        case Mapping():
            return {name: [frontier.sequence, frontier.groups] for name, frontier in value.items()}
        case _:
            return value
