"""Looking into a spool: while its explorer runs, after it was killed while writing, and when it is no spool at all."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from common.errors import StorageFailed
from common.spool_file import APPLICATION_ID, FORMAT_VERSION, SCHEMA, SpoolContents, read_spool
from explorer_service.spool import Spool

ROOT = Path(__file__).parents[3]
OPEN = "import os, sys, time; from pathlib import Path; from explorer_service.spool import Spool\nspool = Spool.open(Path(sys.argv[1]), 'run', 'e')\n"
# More pages are changed than are kept in memory, so that they are written, after what they were, before the commit.
KILLED_WHILE_WRITING = """
connection = spool._connection
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE spool SET last_sequence = 99")
connection.execute("UPDATE batches SET bytes = zeroblob(90000), group_count = 9")
os.kill(os.getpid(), 9)
"""
WRITES_ALL_THE_TIME = """
while True:
    number, _ = spool.append(lambda sequence: os.urandom(20_000), 2, {})
    spool.acknowledge(number - 2 if number > 2 else 0)
    print(number, flush=True)
    time.sleep(0.1)
"""


def made(path: Path) -> SpoolContents:
    """Three batches of 1, 2 and 3 groups, the first of which is acknowledged."""
    spool = Spool.open(path, "run", "e")
    for groups in (1, 2, 3):
        spool.append(lambda _: os.urandom(50_000), groups, {})
    spool.acknowledge(1)
    spool.close()
    return SpoolContents("run", "e", 3, 1, 1, ((2, 2), (3, 3)))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def explorer(path: Path, then: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", OPEN + then, path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_spool_at_rest(tmp_path: Path) -> None:
    expected = made(tmp_path / "e.spool")
    before = files(tmp_path)
    assert read_spool(tmp_path / "e.spool") == expected
    assert expected.produced == 6
    assert files(tmp_path) == before


def test_a_name_that_a_uri_would_read_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "e?mode=rwc#100%.spool"
    assert made(path) == read_spool(path)


def test_a_spool_whose_explorer_holds_its_lock_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "e.spool"
    with explorer(path, WRITES_ALL_THE_TIME) as process:
        assert process.stdout is not None
        for _ in range(3):
            said = int(process.stdout.readline())
            contents = read_spool(path)
            assert contents is not None
            last, acknowledged = contents.last_sequence, contents.acknowledged
            assert last >= said
            assert acknowledged in {last - 2, last - 3} | {0}
            assert (contents.acknowledged_groups, contents.produced) == (2 * acknowledged, 2 * last)
            assert contents.batches == tuple((sequence, 2) for sequence in range(acknowledged + 1, last + 1))
        with (
            closing(sqlite3.connect(path, timeout=0)) as another,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            another.execute("SELECT * FROM spool")  # its lock is as it was


def test_what_a_killed_explorer_left_half_written_is_undone_in_a_copy(tmp_path: Path) -> None:
    expected = made(tmp_path / "e.spool")
    with explorer(tmp_path / "e.spool", KILLED_WHILE_WRITING) as process:
        assert process.wait(60) == -9
    before = files(tmp_path)
    uri = f"{(tmp_path / 'e.spool').as_uri()}?immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as torn:
        assert torn.execute("SELECT last_sequence FROM spool").fetchone() == (99,)
    assert read_spool(tmp_path / "e.spool") == expected
    assert files(tmp_path) == before


def test_a_spool_that_is_just_being_made_has_nothing(tmp_path: Path) -> None:
    path = tmp_path / "e.spool"
    path.touch()
    assert read_spool(path) is None
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    assert read_spool(path) is None


def test_what_is_no_spool_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.spool"
    with pytest.raises(StorageFailed, match="No such file"):
        read_spool(path)
    path.write_bytes(b"x" * 5000)
    with pytest.raises(StorageFailed, match="not a database"):
        read_spool(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageFailed, match="not a regular file"):
        read_spool(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageFailed, match="not a regular file"):
        read_spool(path)


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE other (x)",
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION + 1}; CREATE TABLE spool (x)",
        # A view in a table's place would run whatever it says.
        SCHEMA  # noqa: S608 - constants
        + "DROP TABLE batches; CREATE VIEW batches AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS sequence, x AS group_count FROM n;",
        SCHEMA + "INSERT INTO spool VALUES ('run', 'e', 1, 'many', 0, 0, 0, 0, 0);",  # noqa: S608 - constants
    ],
)
def test_another_database_is_refused(script: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "e.spool")) as connection:
        connection.executescript(script)
    with pytest.raises(StorageFailed, match=r"e\.spool"):
        read_spool(tmp_path / "e.spool")


def test_text_that_is_none_is_a_damaged_spool_and_no_error_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "e.spool"
    Spool.open(path, "a-run", "explorer-0").close()
    raw = path.read_bytes()
    assert raw.count(b"a-run") == 1
    path.write_bytes(raw.replace(b"a-run", b"a-\xff\xfen"))
    with pytest.raises(StorageFailed, match="UTF-8"):
        read_spool(path)
    with pytest.raises(StorageFailed, match="UTF-8"):
        Spool.open(path, "a-run", "explorer-0")
