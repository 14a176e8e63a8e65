"""A ledger's lines: as they are documented, read back as they were written, and refused when they are anything else."""

import json
import os
from pathlib import Path

import pytest
import xxhash

from common.audit.ledger_files import MAX_LINE_BYTES, read_ledgers
from common.audit.records import COLUMNS, Cut, Skipped, Start, Step, decode, encode
from common.errors import CheckpointInvalid, MalformedData, StorageFailed
from tests.support.hand_ledgers import Row, dropped, rows_of, saved, start, step

STEP = (
    '{"n":7,"kind":"step","step":3,"applied":true,"groups":{"explorers":["a"],"explorer":[0,0],"sequence":[4,5],'
    '"ordinal":[8,9],"batch_groups":[1,2],"run_epoch":[1,2],"oldest":[1,1],"newest":[1,2],"experiences":[8,7]}'
)


def line(body: str) -> bytes:
    """As somebody else would write it: the hash of all before it, last."""
    return f'{body},"xxh3":"{xxhash.xxh3_64_hexdigest(body.encode())}"}}'.encode()


def folder(tmp_path: Path, *lines: bytes, epoch: int = 1) -> Path:
    (tmp_path / "ledger").mkdir(exist_ok=True)
    (tmp_path / "ledger" / f"epoch-{epoch:06d}.jsonl").write_bytes(b"".join(lines))
    return tmp_path


def test_a_line_is_one_json_object_whose_last_key_is_the_hash_of_what_is_before_it() -> None:
    number, record = decode(line(STEP))
    assert isinstance(record, Step)
    assert (number, record.step, record.applied, record.groups.explorers) == (7, 3, True, ("a",))
    assert [getattr(record.groups, name).tolist() for name in COLUMNS] == [
        [0, 0], [4, 5], [8, 9], [1, 2], [1, 2], [1, 1], [1, 2], [8, 7]
    ]  # fmt: skip
    assert json.loads(encode(7, record)) == json.loads(line(STEP))
    assert encode(7, record) == line(STEP) + b"\n"


def test_every_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = (Row(1, 0), Row(2, 0, of=1, made=(1, 3), oldest=1, explorer="f"))
    records = (
        start(1, (3, 12, 40), frontiers={"e": (7, 20)}, max_staleness=None),
        step(13, *rows, applied=False),
        dropped(14, "too_stale", *rows),
        Skipped("e", 9, 26, 4),
        saved(13, 3, {"e": (9, 26), "f": (0, 0)}),
    )
    (read,) = read_ledgers(folder(tmp_path, *(encode(number, record) for number, record in enumerate(records))))
    assert [(entry.line, entry.number) for entry in read.entries] == [(number, number) for number in range(5)]
    assert [entry.record for entry in read.entries if not isinstance(entry.record, type(records[1]) | type(records[2]))] == [
        records[0], records[3], records[4]
    ]  # fmt: skip
    first = read.entries[0].record
    assert isinstance(first, Start)
    assert first.resumed == Cut(epoch=3, step=12, record=40)
    assert [rows_of(read.entries[place].record) for place in (1, 2)] == [list(rows), list(rows)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        line(STEP)[:-30],  # torn, and ended
        line(STEP).replace(b'"step":3', b'"step":4'),  # its hash tells
        line(STEP.replace('"step":3', '"step":-3')),
        line(STEP.replace('"step":3', '"step":true')),
        line(STEP.replace('"step":3', '"step":9223372036854775808')),
        line(STEP.replace('"kind":"step"', '"kind":"leap"')),
        line(STEP.replace('"n":7', '"n":"7"')),
        line(STEP.replace('"n":7,', "")),
        line(STEP.replace('"applied":true', '"applied":1')),
        line(STEP.replace('"sequence":[4,5]', '"sequence":[4]')),
        line(STEP.replace('"sequence":[4,5]', '"sequence":[4,5.5]')),
        line(STEP.replace('"sequence":[4,5]', '"sequence":[4,[5]]')),
        line(STEP.replace('"sequence":[4,5]', '"sequence":[4,-5]')),
        line(STEP.replace('"sequence":[4,5]', '"sequence":[4,18446744073709551615]')),
        line(STEP.replace('"sequence":[4,5]', '"sequence":"45"')),
        line(STEP.replace('"explorer":[0,0]', '"explorer":[0,1]')),
        line(STEP.replace('"explorers":["a"]', '"explorers":["a","a"]')),
        line(STEP.replace('"explorers":["a"]', f'"explorers":["{"a" * 257}"]')),
        line('{"n":1,"n":1,"kind":"skipped","explorer":"a","through":1,"groups":1,"lost":1'),
        line('{"n":1,"kind":"saved","step":1,"record":0,"frontiers":{"a":[1]}'),
        line('{"n":0,"kind":"start","format":2'),
        line("[" * 100_000),
        line('{"n":' + "9" * 5000),
        b"",
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_record_is_told_and_the_others_are_read(text: bytes, tmp_path: Path) -> None:
    (read,) = read_ledgers(folder(tmp_path, encode(0, start(1)), text + b"\n", encode(2, step(1, Row(1, 0)))))
    assert [bad.line for bad in read.corrupt] == [1]
    assert [entry.line for entry in read.entries] == [0, 2]


def test_a_last_line_without_its_end_is_left_out(tmp_path: Path) -> None:
    whole = encode(1, step(1, Row(1, 0)))
    for torn in (whole[:-1], whole[:20], b"{"):
        (read,) = read_ledgers(folder(tmp_path, encode(0, start(1)), torn))
        assert (len(read.entries), read.corrupt) == (1, ())
    (read,) = read_ledgers(folder(tmp_path, whole[:20]))
    assert read.start is None


def test_ledgers_are_read_by_epoch_and_other_files_are_not(tmp_path: Path) -> None:
    for epoch in (10, 9, 2_000_000):
        folder(tmp_path, encode(0, start(epoch)), epoch=epoch)
    for name in ("epoch-1.jsonl", "epoch-000003.jsonl.swp", "notes.txt"):
        (tmp_path / "ledger" / name).write_text("x\n")
    assert [read.epoch for read in read_ledgers(tmp_path)] == [9, 10, 2_000_000]


def test_what_is_no_regular_file_or_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, b"") / "ledger" / "epoch-000001.jsonl"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointInvalid, match="not a regular file"):
        read_ledgers(tmp_path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_LINE_BYTES + 10)  # a hole: nothing is on the disk
    with pytest.raises(MalformedData, match="line 1 has more than"):
        read_ledgers(tmp_path)
    with pytest.raises(StorageFailed, match="cannot list"):
        read_ledgers(tmp_path / "nowhere")
