from __future__ import annotations

import errno
import math
import os
import struct
from pathlib import Path

import pytest
from tensorboardX.proto import event_pb2

from common.errors import StorageFailed
from common.monitor.tensorboard import TensorBoardSink


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> list[event_pb2.Event]:
    """Reads TFRecord framing: length u64, its masked crc, data, its masked crc."""
    (path,) = folder.iterdir()
    content, position, found = path.read_bytes(), 0, []
    while position < len(content):
        head = content[position : position + 8]
        length, head_crc = struct.unpack("<QI", content[position : position + 12])
        data = content[position + 12 : position + 12 + length]
        (data_crc,) = struct.unpack("<I", content[position + 12 + length : position + 16 + length])
        assert (head_crc, data_crc) == (masked(head), masked(data))
        found.append(event_pb2.Event.FromString(data))
        position += 16 + length
    return found


def test_event_files_hold_each_scalar_with_its_step_and_time(tmp_path: Path) -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the algorithm
    sink = TensorBoardSink(tmp_path)
    sink.log(3, 123.5, "trainer", {"reward/mean": 0.25, "lr": 0.5})
    sink.log(4, 124.5, "trainer", {"reward/mean": math.nan})
    _, first, second = events(tmp_path / "trainer")  # there before the close
    sink.close()
    sink.close()
    assert (first.step, first.wall_time) == (3, 123.5)
    assert {value.tag: value.simple_value for value in first.summary.value} == {"reward/mean": 0.25, "lr": 0.5}
    assert second.step == 4
    assert math.isnan(second.summary.value[0].simple_value)


def test_each_source_has_a_folder_that_stays_inside(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "tb")
    for source in ("trainer", "explorer-0", "../../escape", "..", ""):
        sink.log(1, 1.0, source, {"a": 1.0})
    sink.close()
    assert {path.name for path in (tmp_path / "tb").iterdir()} == {"trainer", "explorer-0", "_.._escape", "_"}
    assert [path.name for path in tmp_path.iterdir()] == ["tb"]


def test_a_broken_disk_is_told_once_and_never_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.log(1, 1.0, "trainer", {"a": 1.0})

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = sink._writers["trainer"]
    monkeypatch.setattr(writer, "flush", full)
    with pytest.raises(StorageFailed, match="No space left"):
        sink.log(2, 2.0, "trainer", {"a": 1.0})
    for step in range(100):
        sink.log(step, 2.0, "trainer", {"a": 1.0})
    sink.close()
