import fcntl
import os
import shutil
from pathlib import Path

import pytest

from common.checkpoint import leases
from common.checkpoint.manifest_file import write_manifest
from common.errors import CheckpointInvalid


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "data").write_bytes(b"x")
    write_manifest(folder, 1, 1, {})
    return folder


def hold(folder: Path) -> None:
    with leases.hold(folder):
        pass


def test_a_held_checkpoint_is_not_deleted_and_a_free_one_is(checkpoint: Path) -> None:
    with leases.hold(checkpoint):
        assert leases.delete_unless_held(checkpoint) is False
        assert (checkpoint / "data").read_bytes() == b"x"

    assert leases.delete_unless_held(checkpoint) is True
    assert not checkpoint.exists()
    assert list(checkpoint.parent.iterdir()) == []


def test_a_read_only_checkpoint_can_be_held(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").chmod(0o444)
    checkpoint.chmod(0o555)

    hold(checkpoint)
    checkpoint.chmod(0o755)


def test_the_body_s_own_errors_pass_unchanged(checkpoint: Path) -> None:
    def read() -> None:
        with leases.hold(checkpoint) as path:
            (path / "missing").read_bytes()

    with pytest.raises(FileNotFoundError):
        read()


def test_a_checkpoint_that_is_being_deleted_cannot_be_held(checkpoint: Path) -> None:
    descriptor = os.open(checkpoint / "manifest.json", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(CheckpointInvalid, match="being deleted"):
            hold(checkpoint)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("and_written_again", [False, True])
def test_a_checkpoint_that_was_deleted_before_the_lock_was_got_is_not_held(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, and_written_again: bool
) -> None:
    original = fcntl.flock

    def late(descriptor: int, kind: int) -> None:
        moved = checkpoint.rename(checkpoint.with_name("moved"))
        if and_written_again:
            shutil.copytree(moved, checkpoint)
        original(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(CheckpointInvalid, match="was deleted"):
        hold(checkpoint)


def test_a_fifo_in_place_of_the_manifest_blocks_neither_side(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    os.mkfifo(checkpoint / "manifest.json")

    with pytest.raises(CheckpointInvalid, match="not a regular file"):
        hold(checkpoint)
    assert leases.delete_unless_held(checkpoint) is True
