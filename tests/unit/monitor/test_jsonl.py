from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import structlog

from common.errors import MalformedData, StorageFailed
from common.monitor.jsonl import JsonlSink, read_records
from common.monitor.sink import MetricRecord


def test_a_record_is_one_line_of_json_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trainer.jsonl"
    sink = JsonlSink(path)
    sink.log(3, 12.5, "trainer", {"reward/mean": 0.25, "lr": 1e-6})
    assert path.read_text().endswith("\n")
    assert json.loads(path.read_text()) == {
        "step": 3,
        "time": 12.5,
        "source": "trainer",
        "reward/mean": 0.25,
        "lr": 1e-6,
    }
    sink.close()
    sink.close()


def test_what_was_logged_is_read_back(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.log(1, 2.0, "trainer", {"a": 1})
    sink.log(2, 3.0, "explorer-0", {})
    sink.close()
    expected = [MetricRecord(1, 2.0, "trainer", {"a": 1.0}), MetricRecord(2, 3.0, "explorer-0", {})]
    assert read_records(tmp_path / "m.jsonl") == expected


def test_values_that_are_not_finite_are_null_and_warned_of_once(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    with structlog.testing.capture_logs() as logs:
        for value in (math.nan, math.inf, -math.inf):
            sink.log(1, 2.0, "trainer", {"loss": value, "ok": 1.0})
    sink.close()
    assert [entry["metric"] for entry in logs] == ["loss"]
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [None] * 3
    assert [json.loads(line)["ok"] for line in lines] == [1.0] * 3
    assert math.isnan(read_records(tmp_path / "m.jsonl")[0].values["loss"])


def test_a_metric_cannot_replace_the_head_of_a_record(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.log(1, 2.0, "trainer", {"step": 99.0, "source": 98.0})
    sink.close()
    assert read_records(tmp_path / "m.jsonl") == [MetricRecord(1, 2.0, "trainer", {})]


def test_a_restart_appends_after_cutting_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    whole = b'{"step": 1, "time": 2.0, "source": "trainer"}\n'
    path.write_bytes(whole + b'{"step": 2, "ti')
    assert [record.step for record in read_records(path)] == [1]
    sink = JsonlSink(path)
    sink.log(2, 3.0, "trainer", {})
    sink.close()
    assert [record.step for record in read_records(path)] == [1, 2]
    assert path.read_bytes().startswith(whole)


def test_a_file_that_is_one_long_torn_line_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_bytes(b"x" * 200_000)
    JsonlSink(tmp_path / "m.jsonl").close()
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_a_full_disk_is_told_once_leaves_no_torn_line_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.log(1, 2.0, "trainer", {})
    good = path.read_bytes()
    write = os.write
    room = [5]

    def almost_full(file: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 5
        return write(file, data[:5])

    monkeypatch.setattr(os, "write", almost_full)
    with pytest.raises(StorageFailed, match="No space left"):
        sink.log(2, 3.0, "trainer", {})
    assert path.read_bytes() == good
    sink.log(3, 4.0, "trainer", {})
    assert path.read_bytes() == good
    monkeypatch.setattr(os, "write", write)
    sink.log(4, 5.0, "trainer", {})
    sink.close()
    assert [record.step for record in read_records(path)] == [1, 4]


def test_a_disk_that_refuses_to_cut_the_torn_line_too_is_told_once_and_cut_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.log(1, 2.0, "trainer", {})
    write, truncate = os.write, os.ftruncate

    def broken_write(file: int, data: bytes) -> int:
        write(file, data[:5])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def broken_truncate(file: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", broken_write)
    monkeypatch.setattr(os, "ftruncate", broken_truncate)
    with pytest.raises(StorageFailed, match="Input/output error"):
        sink.log(2, 3.0, "trainer", {})
    sink.log(3, 4.0, "trainer", {})
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "ftruncate", truncate)
    sink.log(4, 5.0, "trainer", {})
    sink.close()
    assert [record.step for record in read_records(path)] == [1, 4]


def test_a_folder_that_cannot_be_made_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="metrics file"):
        JsonlSink(tmp_path / "file" / "m.jsonl")


@pytest.mark.parametrize("line", ["{", "[]", "5", '{"step": 1}', '{"step": 1, "time": 1, "source": "t", "a": "x"}'])
def test_a_line_that_is_no_record_names_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1, "time": 2.0, "source": "t"}\n' + line + "\n")
    with pytest.raises(MalformedData, match=r"m\.jsonl:2"):
        read_records(tmp_path / "m.jsonl")
