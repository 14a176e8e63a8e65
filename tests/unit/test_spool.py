"""The explorer's spool: what is promised to survive, survives."""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ProtocolViolation, RunMismatch, StaleEpoch, StorageFailed
from explorer_service.spool import Spool

ROOT = Path(__file__).parents[2]
LARGE = 64 << 10


def reopen(path: Path) -> Spool:
    return Spool.open(path, "run", "explorer-0")


def payload(sequence: int) -> bytes:
    return f"batch {sequence}".encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spool.sqlite"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    opened = reopen(path)
    yield opened
    opened.close()


def fill(spool: Spool, count: int) -> None:
    for _ in range(count):
        spool.append(payload, 1, {"cursor": spool.last_sequence + 1})


def test_a_new_spool_is_empty(spool: Spool) -> None:
    assert (spool.incarnation, spool.last_sequence, spool.acknowledged, spool.run_epoch) == (1, 0, 0, 0)
    assert (spool.pending_batches, spool.pending_bytes) == (0, 0)
    assert spool.load_state() == {}
    assert spool.read_after(0, 10) == []


def test_batches_are_numbered_from_one_and_read_in_order(spool: Spool) -> None:
    assert spool.append(payload, 2, {}) == (1, b"batch 1")
    fill(spool, 3)
    assert spool.read_after(0, 2) == [(1, b"batch 1"), (2, b"batch 2")]
    assert spool.read_after(2, 10) == [(3, b"batch 3"), (4, b"batch 4")]
    assert (spool.pending_batches, spool.pending_bytes) == (4, 4 * 7)


def test_everything_is_there_after_a_restart(spool: Spool, path: Path) -> None:
    state = {"cursor": 3, "rng": [1, [2, 3], None], "version": {"step": 7, "hash": "ab"}, "share": 0.1}
    spool.append(payload, 1, state)
    spool.append(payload, 1, {"cursor": 4})
    spool.save_state({"ordinal": 9})
    spool.observe_epoch(3)
    spool.acknowledge(1)
    spool.close()
    again = reopen(path)
    assert (again.incarnation, again.last_sequence, again.acknowledged, again.run_epoch) == (2, 2, 1, 3)
    assert (again.pending_batches, again.pending_bytes) == (1, 7)
    assert again.load_state() == state | {"cursor": 4, "ordinal": 9}
    assert again.read_after(0, 10) == [(2, b"batch 2")]
    again.close()


def test_acknowledged_batches_are_gone_and_their_numbers_are_never_reused(spool: Spool, path: Path) -> None:
    fill(spool, 3)
    spool.acknowledge(3)
    assert (spool.pending_batches, spool.pending_bytes) == (0, 0)
    assert spool.read_after(0, 10) == []
    spool.close()
    again = reopen(path)
    assert again.append(payload, 1, {}) == (4, b"batch 4")
    again.close()


def test_acknowledging_again_or_less_changes_nothing(spool: Spool) -> None:
    fill(spool, 3)
    spool.acknowledge(2)
    spool.acknowledge(2)
    spool.acknowledge(1)
    assert spool.acknowledged == 2
    assert spool.read_after(0, 10) == [(3, b"batch 3")]


@pytest.mark.parametrize("future", [3, 2**64 - 1])
def test_what_was_never_made_can_be_neither_acknowledged_nor_awaited(spool: Spool, future: int) -> None:
    fill(spool, 2)
    with pytest.raises(ProtocolViolation, match=str(future)):
        spool.acknowledge(future)
    with pytest.raises(ProtocolViolation, match=str(future)):
        spool.read_after(future, 1)
    assert spool.pending_batches == 2


def test_a_batch_that_cannot_be_made_leaves_its_number_free(spool: Spool) -> None:
    def broken(sequence: int) -> bytes:
        raise RuntimeError(f"no batch {sequence}")

    with pytest.raises(RuntimeError, match="no batch 1"):
        spool.append(broken, 1, {"cursor": 1})
    assert spool.load_state() == {}
    assert spool.append(payload, 1, {}) == (1, b"batch 1")


def test_state_that_is_no_json_writes_neither_state_nor_batch(spool: Spool) -> None:
    with pytest.raises(ValueError, match="JSON"):
        spool.append(payload, 1, {"share": float("nan")})
    assert (spool.last_sequence, spool.read_after(0, 10)) == (0, [])


def test_an_earlier_epoch_is_stale_also_after_a_restart(spool: Spool, path: Path) -> None:
    spool.observe_epoch(2)
    spool.observe_epoch(2)
    spool.close()
    again = reopen(path)
    with pytest.raises(StaleEpoch, match="epoch 1"):
        again.observe_epoch(1)
    with pytest.raises(ProtocolViolation):
        again.observe_epoch(2**64 - 1)
    again.observe_epoch(3)
    assert again.run_epoch == 3
    again.close()


@pytest.mark.parametrize("other", [("another-run", "explorer-0"), ("run", "explorer-1")])
def test_the_file_of_another_run_or_explorer_is_refused_untouched(
    spool: Spool, path: Path, other: tuple[str, str]
) -> None:
    spool.close()
    with pytest.raises(RunMismatch, match=r"spool\.sqlite belongs to explorer 'explorer-0' of run 'run'"):
        Spool.open(path, *other)
    again = reopen(path)
    assert again.incarnation == 2
    again.close()


def test_a_second_process_cannot_open_it(spool: Spool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer_service.spool.LOCK_SECONDS", 0.05)
    with pytest.raises(StorageFailed, match="locked"):
        reopen(path)
    assert spool.append(payload, 1, {}) == (1, b"batch 1")


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"these are not the bytes of a database" * 100)
    with pytest.raises(StorageFailed, match=r"spool\.sqlite.*not a database"):
        reopen(path)
    assert path.read_bytes().startswith(b"these")


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StorageFailed, match="no spool"):
        reopen(path)


def test_a_damaged_file_is_named_at_opening(spool: Spool, path: Path) -> None:
    for _ in range(4):
        spool.append(lambda _: bytes(LARGE), 1, {})
    spool.close()
    data = bytearray(path.read_bytes())
    # Page 1 with the header stays: the trees behind it are what is lost.
    data[4096 : 4096 * 6] = b"\xa5" * (4096 * 5)
    path.write_bytes(data)
    with pytest.raises(StorageFailed, match=r"spool\.sqlite"):
        reopen(path)


def test_a_bit_that_flipped_on_disk_is_not_sent(spool: Spool, path: Path) -> None:
    spool.append(lambda _: b"x" * LARGE, 1, {})
    spool.close()
    data = path.read_bytes()
    position = data.rindex(b"xxxx")
    path.write_bytes(data[:position] + b"y" + data[position + 1 :])
    again = reopen(path)
    with pytest.raises(StorageFailed, match="batch 1 is corrupt"):
        again.read_after(0, 1)
    again.close()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="file"):
        reopen(tmp_path / "file" / "spool.sqlite")


def append_until_it_fails(spool: Spool) -> int:
    for count in range(1000):
        try:
            spool.append(lambda sequence: sequence.to_bytes(8, "big") * (LARGE // 8), 1, {"cursor": count + 1})
        except StorageFailed:
            return count
    raise AssertionError("the disk was never full")


def assert_holds(spool: Spool, count: int) -> None:
    assert (spool.last_sequence, spool.pending_batches, spool.pending_bytes) == (count, count, count * LARGE)
    assert spool.load_state() == {"cursor": count}
    batches = spool.read_after(0, count + 1)
    assert batches == [(number, number.to_bytes(8, "big") * (LARGE // 8)) for number in range(1, count + 1)]


@pytest.fixture
def full_disk_spool(tmp_path: Path) -> Iterator[Spool]:
    """On a tmpfs of 8 MB where this user may mount one; else SQLite itself refuses to let the file grow beyond 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    mounted = (
        mount is not None
        and unmount is not None
        and subprocess.run([mount, "-t", "tmpfs", "-o", "size=8m", "tandem", folder], check=False).returncode == 0
    )
    spool = reopen(folder / "spool.sqlite")
    if not mounted:
        spool._connection.execute("PRAGMA max_page_count = 2048")
    yield spool
    spool.close()
    if mounted:
        subprocess.run([str(unmount), folder], check=True)


def test_a_full_disk_loses_nothing_and_an_acknowledgement_makes_room(full_disk_spool: Spool) -> None:
    spool = full_disk_spool
    first = append_until_it_fails(spool)
    assert first > 50
    assert_holds(spool, first)
    for kept in (0, 5, 1):
        spool.acknowledge(spool.last_sequence - kept)
        spool.save_state({"cursor": -1})
        count = append_until_it_fails(spool)
        assert count > first // 2
        assert spool.load_state() == {"cursor": count}
        numbers = [number for number, _ in spool.read_after(0, 1000)]
        assert numbers == list(range(spool.acknowledged + 1, spool.last_sequence + 1))
        assert len(numbers) == kept + count


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 3 MB: writing then fails with EFBIG, an I/O error to SQLite."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_after_an_io_error_nothing_more_is_promised_and_nothing_committed_is_lost(path: Path) -> None:
    spool = reopen(path)
    count = append_until_it_fails(spool)
    assert count > 1
    for attempt in (lambda: spool.acknowledge(1), lambda: spool.save_state({}), lambda: spool.observe_epoch(5)):
        with pytest.raises(StorageFailed, match="I/O"):
            attempt()
    spool.close()
    again = reopen(path)
    assert_holds(again, count)
    again.close()


CHILD = """
import sys
from pathlib import Path
from explorer_service.spool import Spool

spool = Spool.open(Path(sys.argv[1]), "run", "explorer-0")
while True:
    sequence, _ = spool.append(lambda number: number.to_bytes(8, "big") * 4096, 1, {"cursor": spool.last_sequence + 1})
    if sequence % 3 == 0:
        spool.acknowledge(sequence - 2)
    print(sequence, flush=True)
"""


def test_killed_in_the_middle_of_appends_it_goes_on_where_it_was(path: Path) -> None:
    reported = 0
    # Killed after another number of appends each time; where in the next append the signal lands is up to the kernel.
    for incarnation, appends in enumerate((1, 7, 20), start=1):
        child = subprocess.Popen([sys.executable, "-c", CHILD, path], cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(appends):
            line = int(child.stdout.readline())
            assert line == reported + 1
            reported = line
        os.kill(child.pid, signal.SIGKILL)
        reported = max([reported, *map(int, child.stdout.read().split())])
        assert child.wait(timeout=30) == -signal.SIGKILL
        spool = reopen(path)
        assert spool.incarnation == 2 * incarnation
        # The commit after the last report may have happened as well, but no more than that one.
        assert spool.last_sequence - reported in {0, 1}
        reported = spool.last_sequence
        assert spool.load_state() == {"cursor": reported}
        batches = spool.read_after(0, reported)
        assert [number for number, _ in batches] == list(range(spool.acknowledged + 1, reported + 1))
        assert all(data == number.to_bytes(8, "big") * 4096 for number, data in batches)
        spool.close()


def test_groups_that_were_acknowledged_are_counted_across_restarts(tmp_path: Path) -> None:
    path = tmp_path / "e.spool"
    spool = Spool.open(path, "run", "e")
    for groups in (3, 1, 2):
        spool.append(lambda sequence: b"%d" % sequence, groups, {})
    spool.acknowledge(2)
    assert (spool.acknowledged_groups, spool.pending_groups) == (4, 2)
    spool.acknowledge(2)
    assert spool.acknowledged_groups == 4
    spool.close()
    again = Spool.open(path, "run", "e")
    assert (again.acknowledged_groups, again.pending_groups) == (4, 2)
    again.acknowledge(3)
    assert (again.acknowledged_groups, again.pending_groups) == (6, 0)
    again.close()


def test_it_knows_that_a_trainer_goes_on_from_before_an_acknowledgement(tmp_path: Path) -> None:
    path = tmp_path / "e.spool"
    spool = Spool.open(path, "run", "e")
    assert not spool.acknowledged_beyond(1, 0)
    spool.observe_epoch(1)
    for newest_step in (3, 4, 5):
        spool.append(lambda sequence: b"%d" % sequence, 1, {}, newest_step)
    spool.acknowledge(2)  # what was made on versions 3 and 4: trained by step 5 at the latest
    spool.close()
    again = Spool.open(path, "run", "e")
    again.observe_epoch(2)
    assert not again.acknowledged_beyond(1, 4)  # the trainer that acknowledged it
    assert not again.acknowledged_beyond(2, 5)
    assert again.acknowledged_beyond(2, 4)
    assert again.acknowledged_beyond(2, 0)
    again.acknowledge(3)
    assert not again.acknowledged_beyond(2, 0)
    assert again.acknowledged_beyond(3, 5)
    again.close()
