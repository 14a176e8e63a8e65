import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.checkpoint.atomic import replace_file
from common.checkpoint.manifest_file import verify
from common.checkpoint.store import CheckpointStore, SavedCheckpoint
from common.errors import CheckpointInvalid, StaleEpoch, StorageFailed


def filler(content: bytes) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "data").write_bytes(content)
        (folder / "more").write_bytes(content * 2)

    return fill


def save(store: CheckpointStore, step: int, run_epoch: int = 1) -> SavedCheckpoint:
    return store.write(step, run_epoch, filler(b"step %d" % step), {"frontier": step * 10})


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir() if path.is_dir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_what_was_written_is_found_again(store: CheckpointStore) -> None:
    assert store.newest() is None
    save(store, 10)

    saved = store.write(20, 1, filler(b"new"), {"frontier": {"e": 7}})

    assert saved == SavedCheckpoint(20, 1, store.root / "step_00000020-e1", "step_00000020-e1")
    assert store.latest() == "step_00000020-e1"
    found = store.newest()
    assert found is not None
    assert (found.path, found.relative, found.refused) == (saved.path, saved.relative, ())
    assert (found.manifest.step, found.manifest.run_epoch, found.manifest.state) == (20, 1, {"frontier": {"e": 7}})
    assert (found.path / "data").read_bytes() == b"new"


def test_a_later_run_epoch_is_newer_than_a_higher_step_of_an_earlier_one(store: CheckpointStore) -> None:
    save(store, 30, run_epoch=1)
    save(store, 20, run_epoch=2)
    save(store, 100_000_000, run_epoch=1)

    found = store.newest()
    assert found is not None
    assert found.relative == "step_00000020-e2"


def test_a_step_that_is_written_again_replaces_nothing(store: CheckpointStore) -> None:
    first = save(store, 10, run_epoch=1)
    second = store.write(10, 2, filler(b"second"), {})
    third = store.write(10, 2, filler(b"third"), {})

    assert [one.relative for one in (first, second, third)] == [
        "step_00000010-e1",
        "step_00000010-e2",
        "step_00000010-e2-r1",
    ]
    assert all(verify(one.path) for one in (first, second, third))
    found = store.newest()
    assert found is not None
    assert found.relative == third.relative


def test_a_corrupt_newest_checkpoint_gives_way_to_the_one_before(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        save(store, step)
    (store.root / "step_00000030-e1" / "data").write_bytes(b"step 3O")
    (store.root / "step_00000020-e1" / "more").unlink()

    found = store.newest()

    assert found is not None
    assert found.relative == "step_00000010-e1"
    assert [one.relative for one in found.refused] == ["step_00000030-e1", "step_00000020-e1"]
    assert "data has hash" in found.refused[0].reason
    assert "more is missing" in found.refused[1].reason


def test_to_start_afresh_over_nothing_but_broken_checkpoints_is_refused(store: CheckpointStore) -> None:
    save(store, 10)
    (store.root / "step_00000010-e1" / "data").unlink()

    with pytest.raises(CheckpointInvalid, match=r"step_00000010-e1.*data is missing"):
        store.newest()


def test_a_checkpoint_under_another_name_is_refused(store: CheckpointStore) -> None:
    save(store, 10)
    (store.root / "step_00000010-e1").rename(store.root / "step_00000099-e9")

    with pytest.raises(CheckpointInvalid, match="holds step 10 of run epoch 1"):
        store.newest()


def test_what_is_no_checkpoint_is_not_looked_at(store: CheckpointStore, tmp_path: Path) -> None:
    save(store, 10)
    (store.root / "step_00000020-e1").symlink_to(store.root / "step_00000010-e1")
    (store.root / "step_00000030-e1").write_bytes(b"")
    (store.root / "step_00000040-e1-copy").mkdir()
    (store.root / "step_0000004\u0665-e1").mkdir()
    os.mkfifo(store.root / "step_00000050-e1")

    found = store.newest()
    assert found is not None
    assert (found.relative, found.refused) == ("step_00000010-e1", ())


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_failure_at_any_point_of_a_write_leaves_a_newest_that_is_whole(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    save(store, 10)
    original = getattr(os, failing)
    for point in range(1, 20):
        calls = 0

        def fail(*arguments: object, point: int = point, **keywords: object) -> object:
            nonlocal calls
            calls += 1
            if calls == point:
                raise OSError(errno.EIO, "Input/output error")
            return original(*arguments, **keywords)

        with monkeypatch.context() as patch:
            patch.setattr(os, failing, fail)
            try:
                save(store, 20)
            except StorageFailed:
                failed = True
            else:
                failed = False
        assert failed == (calls >= point)

        verify(store.root / "step_00000010-e1")
        found = store.newest()
        assert found is not None
        assert found.refused == ()
        # Whole, or not there: once its own folder is durable, only the pointer to it can be missing.
        assert (found.path / "data").read_bytes() == b"step %d" % found.manifest.step
        assert found.manifest.state == {"frontier": found.manifest.step * 10}
        assert not list(store.root.glob(".tmp-*"))
        if not failed:
            assert found.manifest.step == 20
            return
    pytest.fail("a write has fewer than 20 such calls")


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.parametrize("failing", ["fsync", "rename"])
@pytest.mark.parametrize("point", range(1, 8))
def test_a_kill_at_any_point_of_a_write_leaves_a_newest_that_is_whole(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, failing: str, point: int
) -> None:
    save(store, 10)
    original = getattr(os, failing)
    calls = 0

    def kill(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls >= point:
            raise Killed
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, kill)
        # A killed process cleans nothing up either.
        patch.setattr("common.checkpoint.atomic._remove_noting", lambda path, error: None)
        try:
            save(store, 20)
            died = False
        except Killed:
            died = True
    assert died == (calls >= point)

    restarted = CheckpointStore(store.root, keep=2)
    restarted.sweep()
    found = restarted.newest()
    assert found is not None
    assert (found.path / "data").read_bytes() == b"step %d" % found.manifest.step
    verify(store.root / "step_00000010-e1")
    assert not list(store.root.glob(".tmp-*"))
    assert restarted.latest() in {"step_00000010-e1", found.relative}
    save(restarted, 30)
    found = restarted.newest()
    assert found is not None
    assert found.manifest.step == 30


def test_an_error_of_the_filler_passes_and_leaves_nothing(store: CheckpointStore) -> None:
    save(store, 10)

    def fill(folder: Path) -> None:
        (folder / "data").write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write(20, 1, fill, {})
    assert names(store) == ["step_00000010-e1"]


@pytest.fixture
def tiny_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 1 MB; without the right to mount one, fsyncs of larger files that fail as it would."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = (
        os.geteuid() == 0 and subprocess.run(command, check=False, timeout=10, capture_output=True).returncode == 0
    )
    if not mounted:
        original = os.fsync

        def full(descriptor: int) -> None:
            if os.fstat(descriptor).st_size > 1 << 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            original(descriptor)

        monkeypatch.setattr(os, "fsync", full)
    yield disk
    if mounted:
        subprocess.run(["/bin/umount", str(disk)], check=True, timeout=10)


def test_a_full_disk_leaves_the_previous_checkpoint_good_and_takes_the_next(tiny_disk: Path) -> None:
    store = CheckpointStore(tiny_disk, keep=2)
    save(store, 10)

    with pytest.raises(StorageFailed, match="No space left") as caught:
        store.write(20, 1, lambda folder: (folder / "data").write_bytes(bytes(2 << 20)) and None, {})
    assert "step_00000020-e1" in caught.value.message
    found = store.newest()
    assert found is not None
    assert found.manifest.step == 10
    assert names(store) == ["step_00000010-e1"]

    with pytest.raises(StorageFailed, match="step_00000020-e1"):
        store.write(20, 1, lambda folder: save_file({"x": torch.zeros(2 << 20)}, folder / "model.safetensors"), {})
    save(store, 30)
    found = store.newest()
    assert found is not None
    assert found.manifest.step == 30


def test_retention_keeps_the_newest(store: CheckpointStore) -> None:
    for step in (10, 20, 30, 40):
        save(store, step)

    assert store.prune() == ["step_00000020-e1", "step_00000010-e1"]
    assert names(store) == ["step_00000030-e1", "step_00000040-e1"]
    assert store.prune() == []


def test_retention_spares_what_this_process_holds(store: CheckpointStore) -> None:
    for step in (10, 20, 30, 40):
        save(store, step)

    with store.hold(10) as path:
        assert path == store.root / "step_00000010-e1"
        with store.hold(10):
            assert store.prune() == ["step_00000020-e1"]
        verify(path)
    assert store.prune() == ["step_00000010-e1"]


def test_retention_spares_what_another_process_holds_until_it_dies(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        save(store, step)
    repository = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.hold_checkpoint", store.root / "step_00000010-e1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=repository,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"held\n"
        assert store.prune() == []
        verify(store.root / "step_00000010-e1")
        reader.kill()
        reader.wait(10)

    assert store.prune() == ["step_00000010-e1"]


def test_a_checkpoint_that_is_gone_or_going_cannot_be_held(store: CheckpointStore) -> None:
    save(store, 10)

    def hold(step: int) -> None:
        with store.hold(step):
            pass

    with pytest.raises(CheckpointInvalid, match="no checkpoint of step 20"):
        hold(20)
    (store.root / "step_00000010-e1" / "manifest.json").unlink()
    with pytest.raises(CheckpointInvalid, match="missing"):
        hold(10)


def test_retention_never_deletes_what_latest_names(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        save(store, step)
    replace_file(store.root / "latest", b"step_00000010-e1\n")

    assert store.prune() == []
    assert names(store) == ["step_00000010-e1", "step_00000020-e1", "step_00000030-e1"]


def test_broken_checkpoints_do_not_count_and_go_when_they_are_old(store: CheckpointStore) -> None:
    for step in (10, 20, 30, 40, 50):
        save(store, step)
    (store.root / "step_00000020-e1" / "manifest.json").unlink()
    (store.root / "step_00000040-e1" / "data").unlink()

    assert store.prune() == ["step_00000020-e1", "step_00000010-e1"]
    assert names(store) == ["step_00000030-e1", "step_00000040-e1", "step_00000050-e1"]


def test_retention_keeps_everything_while_too_few_are_sound(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        save(store, step)
    for step in (20, 30):
        (store.root / f"step_000000{step}-e1" / "data").unlink()

    assert store.prune() == []


@pytest.mark.parametrize("content", [b"", b"../../etc\n", b"step_00000010-e1/../..", b"\xff\xfe", b"x" * 300])
def test_a_pointer_that_names_no_checkpoint_is_refused(store: CheckpointStore, content: bytes) -> None:
    save(store, 10)
    (store.root / "latest").write_bytes(content)

    with pytest.raises(CheckpointInvalid, match="latest"):
        store.latest()
    assert store.newest() is not None


def test_run_epochs_only_rise_whatever_is_left_of_the_run(store: CheckpointStore) -> None:
    assert [store.claim_run_epoch() for _ in range(3)] == [1, 2, 3]
    save(store, 10, run_epoch=7)
    assert store.claim_run_epoch() == 8
    (store.root / "run_epoch").unlink()
    assert store.claim_run_epoch() == 8

    (store.root / "run_epoch").write_bytes(b"9; rm -rf\n")
    with pytest.raises(CheckpointInvalid, match="run_epoch"):
        store.claim_run_epoch()


def test_a_store_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keeps"):
        CheckpointStore(tmp_path, keep=0)


def test_one_that_was_replaced_writes_no_checkpoint(store: CheckpointStore) -> None:
    epoch = store.claim_run_epoch()
    kept = save(store, 1, epoch)

    def replaced_meanwhile(folder: Path) -> None:
        filler(b"late")(folder)
        assert store.claim_run_epoch() == epoch + 1

    for fill in (replaced_meanwhile, filler(b"later")):
        with pytest.raises(StaleEpoch, match=f"{epoch + 1} was claimed"):
            store.write(2, epoch, fill, {})
    assert names(store) == [kept.relative]
    assert store.latest() == kept.relative
