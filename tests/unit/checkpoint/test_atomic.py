import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Never

import pytest

from common.checkpoint.atomic import atomic_directory, remove_directory, replace_file, sweep
from common.errors import StorageFailed


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def fail_on_call(name: str, number: int, monkeypatch: pytest.MonkeyPatch, code: int = errno.EIO) -> Callable[[], int]:
    """Makes the `number`-th call of os.`name` fail; returns a count of the calls made."""
    original, calls = getattr(os, name), 0

    def failing(*arguments: object, **keywords: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **keywords)

    monkeypatch.setattr(os, name, failing)
    return lambda: calls


def write(root: Path, name: str) -> None:
    with atomic_directory(root, name) as folder:
        (folder / "sub").mkdir()
        (folder / "a").write_bytes(b"1")
        (folder / "sub" / "b").write_bytes(b"2")


def test_a_folder_appears_whole_and_only_at_the_end(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    with atomic_directory(root, "x") as folder:
        (folder / "a").write_bytes(b"1")
        assert not (root / "x").exists()

    assert tree(root) == {"x/a": b"1"}


def test_everything_is_durable_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def recording_fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recording_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording_rename)
    write(tmp_path, "x")

    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert {"a", "b", "sub"} < set(before)
    assert before[-1].startswith(".tmp-x-")
    assert before.index("b") < before.index("sub")
    assert after == [tmp_path.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize(("call", "number"), [("fsync", 1), ("fsync", 2), ("fsync", 4), ("fsync", 5), ("rename", 1)])
def test_a_disk_that_fails_at_any_point_leaves_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: int
) -> None:
    write(tmp_path, "before")
    before = tree(tmp_path)
    calls = fail_on_call(call, number, monkeypatch, code)

    with pytest.raises(StorageFailed, match=str(tmp_path / "x")) as caught:
        write(tmp_path, "x")

    assert calls() == number
    assert os.strerror(code) in caught.value.message
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


def test_an_error_while_filling_leaves_nothing(tmp_path: Path) -> Never:
    def fill() -> None:
        with atomic_directory(tmp_path, "x") as folder:
            (folder / "a").write_bytes(b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill()

    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_replaced(tmp_path: Path) -> None:
    write(tmp_path, "x")
    before = tree(tmp_path)

    with pytest.raises(StorageFailed, match="exists"), atomic_directory(tmp_path, "x") as folder:
        (folder / "other").write_bytes(b"3")

    assert tree(tmp_path) == before


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StorageFailed, match="file/root"):
        write(tmp_path / "file" / "root", "x")


def test_a_failed_clean_up_does_not_hide_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on_call("rename", 1, monkeypatch, errno.ENOSPC)
    monkeypatch.setattr("common.checkpoint.atomic.shutil.rmtree", lambda path: (_ for _ in ()).throw(OSError("stuck")))

    with pytest.raises(StorageFailed, match="No space left") as caught:
        write(tmp_path, "x")

    assert caught.value.__cause__ is not None
    assert "stuck" in caught.value.__cause__.__notes__[0]


def test_leftovers_of_a_crash_are_swept_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "x")
    (tmp_path / ".tmp-y-0123").mkdir()
    (tmp_path / ".tmp-y-0123" / "half").write_bytes(b"")
    (tmp_path / ".tmp-latest-0123").write_bytes(b"")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "x")

    assert sweep(tmp_path) == [".tmp-latest-0123", ".tmp-link", ".tmp-y-0123"]
    assert tree(tmp_path) == {"x/a": b"1", "x/sub/b": b"2"}
    assert sweep(tmp_path / "missing") == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "latest"
    replace_file(path, b"one")
    with monkeypatch.context() as patch:
        fail_on_call(call, 1, patch)
        with pytest.raises(StorageFailed, match="latest"):
            replace_file(path, b"two")

    assert tree(tmp_path) == {"latest": b"one"}
    replace_file(path, b"three")
    assert tree(tmp_path) == {"latest": b"three"}


def test_a_deletion_that_is_cut_leaves_no_half_folder_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "x")
    with monkeypatch.context() as patch:
        fail_on_call("unlink", 2, patch)
        with pytest.raises(StorageFailed, match="cannot delete"):
            remove_directory(tmp_path / "x")

    assert not (tmp_path / "x").exists()
    assert len(sweep(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
