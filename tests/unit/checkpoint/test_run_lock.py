"""One writer a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
