"""Files that a user names are read whole, or refused; never waited for."""

import os
from pathlib import Path

import pytest

from common.config.plain_file import read_plain_file
from common.errors import ConfigError


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_plain_file(file, 5, "it") == b"12345"
    with pytest.raises(ConfigError, match=r"^it: is longer than 4 bytes"):
        read_plain_file(file, 4, "it")


def test_a_pipe_or_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="is no plain file"):
            read_plain_file(path, 9, "it")


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_plain_file(tmp_path / "none", 9, "it")
