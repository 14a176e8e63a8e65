import os
from pathlib import Path

import pytest

from common.checkpoint.paths import resolve_under
from common.errors import CheckpointInvalid, UnsafePath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "run" / "step").mkdir(parents=True)
    (root / "run" / "file").write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "root-sibling").mkdir()
    return root


def test_files_and_folders_below_the_root_are_found(root: Path) -> None:
    assert resolve_under(root, "run/step") == root / "run" / "step"
    assert resolve_under(root, "run/./file") == root / "run" / "file"


@pytest.mark.parametrize(
    "relative",
    [
        *(
            "",
            ".",
            "./",
            "/",
            "/etc/passwd",
            "//etc",
            "..",
            "../secret",
            "../root-sibling",
            "run/../run/step",
            "run/..",
        ),
        *("run/\0step", "\ud800", "a" * 256, "a/" * 600),
    ],
    ids=lambda relative: ascii(relative)[:30],
)
def test_paths_that_could_lead_elsewhere_are_unsafe(root: Path, relative: str) -> None:
    with pytest.raises(UnsafePath) as caught:
        resolve_under(root, relative)
    assert caught.value.message.isascii()
    assert len(caught.value.message) < 500


def test_symlinks_may_not_leave_the_root(root: Path, tmp_path: Path) -> None:
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "sibling").symlink_to(tmp_path / "root-sibling")
    (root / "up").symlink_to(tmp_path)
    (root / "inside").symlink_to(root / "run")
    (root / "loop").symlink_to(root / "loop")

    for relative in ("out", "sibling", "up", "up/secret", "loop"):
        with pytest.raises(UnsafePath):
            resolve_under(root, relative)
    assert resolve_under(root, "up/root/run") == root / "run"
    assert resolve_under(root, "inside/step") == root / "run" / "step"


def test_a_root_that_is_itself_a_symlink_is_fine(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)

    assert resolve_under(tmp_path / "link", "run/file") == root / "run" / "file"


def test_a_fifo_is_unsafe_and_does_not_block(root: Path) -> None:
    os.mkfifo(root / "fifo")

    with pytest.raises(UnsafePath, match="neither"):
        resolve_under(root, "fifo")


def test_what_is_not_there_is_an_invalid_checkpoint(root: Path) -> None:
    for relative in ("run/other", "run/file/below"):
        with pytest.raises(CheckpointInvalid, match="nothing at"):
            resolve_under(root, relative)
