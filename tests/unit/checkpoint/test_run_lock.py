"""One writer a folder."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from common.checkpoint import run_lock
from common.checkpoint.run_lock import LOCK_NAME, exclusive
from common.errors import ConfigError, StorageFailed

HOLDER = """
import sys
from pathlib import Path
from common.checkpoint.run_lock import exclusive
with exclusive(Path(sys.argv[1]), "trainer"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_told_who_the_first_is_and_gets_the_folder_when_that_one_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        owner = f"another trainer that is running: trainer, process {holder.pid} on "
        with pytest.raises(ConfigError, match=owner), exclusive(root, "trainer"):
            raise AssertionError
        holder.kill()
        holder.wait()
    with exclusive(root, "trainer"):
        assert f"process {os.getpid()} " in (root / LOCK_NAME).read_text()
    with exclusive(root, "trainer"):
        pass


def test_an_owner_that_hangs_is_shown_with_its_last_sign_of_life(tmp_path: Path) -> None:
    with exclusive(tmp_path, "trainer"):
        long_ago = time.time() - 500
        os.utime(tmp_path / LOCK_NAME, (long_ago, long_ago))
        with pytest.raises(ConfigError, match=r"no sign of life for 50\d s"), exclusive(tmp_path, "trainer"):
            raise AssertionError


def test_who_holds_a_folder_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.01)
    with exclusive(tmp_path, "trainer"):
        os.utime(tmp_path / LOCK_NAME, (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / LOCK_NAME).stat().st_mtime < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("lives", [True, False])
def test_an_owner_elsewhere_is_believed_by_its_heartbeat_where_locks_are_not_passed_on(
    lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(run_lock, "SILENT_SECONDS", 0.3)
    path = tmp_path / LOCK_NAME
    path.write_text("trainer, process 7 on another-machine\n")
    os.utime(path, (time.time() - 3, time.time() - 3))  # its clock is late
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.02):
            os.utime(path)

    if lives:
        threading.Thread(target=beat).start()
    try:
        if lives:
            with pytest.raises(ConfigError, match="process 7 on another-machine"), exclusive(tmp_path, "trainer"):
                raise AssertionError
        else:
            with exclusive(tmp_path, "trainer"):
                pass
            assert not path.read_text()  # let go: nobody has to wait
    finally:
        ended.set()


def test_a_folder_that_cannot_be_made_is_a_failure_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="file"), exclusive(tmp_path / "file" / "run", "trainer"):
        raise AssertionError


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    root = tmp_path / "run"
    root.mkdir()
    (root / LOCK_NAME).symlink_to(target)
    with pytest.raises(StorageFailed), exclusive(root, "trainer"):
        raise AssertionError
    assert target.read_text() == "precious"
