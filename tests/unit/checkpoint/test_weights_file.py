import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from common.checkpoint.weights_file import read_weights, write_weights
from common.errors import CheckpointInvalid, LimitExceeded, MalformedData, StorageFailed
from tests.support.weights import lay_out, same_bits, sample_tensors

ODD_BITS = {
    "bf16": torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16),
    "f16": torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16),
    "f32": torch.tensor([-(1 << 23), 1, 0x7FC00001], dtype=torch.int32).view(torch.float32),
    "f64": torch.tensor([1.5, -0.0], dtype=torch.float64),
    "i8": torch.tensor([[-128], [127]], dtype=torch.int8),
    "i16": torch.tensor([-32768], dtype=torch.int16),
    "i32": torch.tensor(7, dtype=torch.int32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_the_safetensors_library_opens_what_we_write(path: Path) -> None:
    tensors = sample_tensors()
    manifest, data = lay_out(tensors)

    write_weights(path, manifest, data)

    with safe_open(path, framework="pt") as opened:
        assert set(opened.keys()) == set(tensors)
        assert opened.metadata() == {"format": "pt", "tandem.manifest_hash": manifest.manifest_hash}
        assert all(same_bits(opened.get_tensor(name), tensors[name]) for name in tensors)
    assert all(same_bits(tensor, tensors[name]) for name, tensor in load_file(path).items())


@pytest.mark.parametrize("tensors", [sample_tensors(), ODD_BITS, {}], ids=["samples", "odd bits", "nothing"])
def test_we_read_what_the_safetensors_library_writes_bit_by_bit(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, path)

    manifest, read = read_weights(path.parent)

    assert set(read) == set(tensors)
    assert all(same_bits(read[name], tensors[name]) for name in tensors)
    assert [entry.name for entry in manifest.tensors] == sorted(tensors)


def test_the_manifest_of_what_was_read_equals_the_one_that_was_written(path: Path) -> None:
    tensors = sample_tensors()
    shuffled = {name: tensors[name] for name in ("e.scalar", "g.empty", "b.bytes", "a.empty", "d.half", "c.weight")}
    for one in (tensors, shuffled):
        manifest, data = lay_out(one)
        write_weights(path, manifest, data)

        read_manifest, read = read_weights(path.parent)

        assert read_manifest == manifest
        assert all(same_bits(read[name], one[name]) for name in one)
        path.unlink()


def test_the_manifest_of_a_file_by_the_library_equals_the_exported_one(path: Path) -> None:
    tensors = sample_tensors()
    save_file(tensors, path)

    assert read_weights(path.parent)[0] == lay_out(tensors)[0]


def test_what_is_read_can_be_changed_without_changing_the_file(path: Path) -> None:
    manifest, data = lay_out(sample_tensors())
    write_weights(path, manifest, data)
    before = path.read_bytes()

    read_weights(path.parent)[1]["b.bytes"].fill_(9)

    assert path.read_bytes() == before


def test_every_flipped_bit_of_the_weights_is_found(path: Path) -> None:
    manifest, data = lay_out(sample_tensors())
    write_weights(path, manifest, data)
    raw = bytearray(path.read_bytes())
    for byte in range(len(raw) - manifest.total_bytes, len(raw), 3):
        raw[byte] ^= 1 << byte % 8
        path.write_bytes(raw)
        with pytest.raises(CheckpointInvalid, match="holds weights with hash"):
            read_weights(path.parent)
        raw[byte] ^= 1 << byte % 8


def test_a_file_that_is_cut_anywhere_is_refused(path: Path) -> None:
    manifest, data = lay_out(sample_tensors())
    write_weights(path, manifest, data)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(MalformedData):
            read_weights(path.parent)
    path.write_bytes(whole + b"\0")
    with pytest.raises(MalformedData):
        read_weights(path.parent)


def test_a_header_of_odd_length_is_read_all_the_same(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (3 - len(header) % 8)
    assert len(header) % 8
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x00\x00\x80\x3f\x00\x00\x00\xc0")

    assert read_weights(path.parent)[1]["w"].tolist() == [1.0, -2.0]


def test_limits_are_named(path: Path) -> None:
    manifest, data = lay_out(sample_tensors())
    write_weights(path, manifest, data)

    with pytest.raises(LimitExceeded, match="at most 6"):
        read_weights(path.parent, max_tensors=6)
    os.truncate(path, 1 << 40)
    with pytest.raises(LimitExceeded, match="weights_bytes"):
        read_weights(path.parent, max_bytes=1 << 30)


def test_what_is_no_file_is_refused_and_does_not_block(path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="missing"):
        read_weights(path.parent)
    os.mkfifo(path)
    with pytest.raises(CheckpointInvalid, match="not a regular file"):
        read_weights(path.parent)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointInvalid, match="not a regular file"):
        read_weights(path.parent)
    path.rmdir()
    (path.parent / "elsewhere").write_bytes(b"")
    path.symlink_to("elsewhere")
    with pytest.raises(CheckpointInvalid, match="not a regular file"):
        read_weights(path.parent)


def test_data_that_is_not_the_manifest_s_is_not_written(path: Path) -> None:
    manifest, data = lay_out(sample_tensors())

    for wrong in (data[:-1], data.to(torch.float32)):
        with pytest.raises(ValueError, match="bytes of weights"):
            write_weights(path, manifest, wrong)
    assert not path.exists()


def test_a_full_disk_is_a_storage_failure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, data = lay_out(sample_tensors())

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageFailed, match=r"model\.safetensors: No space left"):
        write_weights(path, manifest, data)
