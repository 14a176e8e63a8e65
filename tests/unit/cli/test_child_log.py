"""The end of a log as a reason."""

from __future__ import annotations

import json
from pathlib import Path

from common.cli.child_log import log_end


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def event(**fields: object) -> str:
    return json.dumps(fields)


def test_errors_are_shown_and_what_was_logged_for_information_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(
        log,
        event(event="listening", level="info"),
        event(event="run_failed", level="error", reason="PEER_UNAVAILABLE", error="no trainer for 120 seconds"),
        event(event="closed", level="info"),
    )
    end = log_end(log, 0)
    assert end.lines == ("run_failed (PEER_UNAVAILABLE): no trainer for 120 seconds",)
    assert end.blames_peer


def test_an_earlier_start_is_not_blamed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, event(event="run_failed", level="error", reason="PEER_FAILED", error="long ago"))
    offset = log.stat().st_size
    write(log, event(event="bad_configuration", level="error", error="`x` is missing"))
    end = log_end(log, offset)
    assert end.lines == ("bad_configuration: `x` is missing",)
    assert not end.blames_peer


def test_a_traceback_from_outside_the_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, event(event="listening", level="info"), "Traceback (most recent call last):", "ImportError: no libfoo")
    assert log_end(log, 0).lines == ("Traceback (most recent call last):", "ImportError: no libfoo")


def test_what_python_complains_of_at_its_end_does_not_hide_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, event(event="run_failed", level="error", error="the cause"), *(f"Exception {i}" for i in range(9)))
    assert log_end(log, 0).lines == ("run_failed: the cause", *(f"Exception {i}" for i in range(3, 9)))


def test_without_any_error_the_last_lines_say_how_far_it_came(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, *(event(event=f"step {number}", level="info") for number in range(20)))
    assert log_end(log, 0).lines == tuple(f"step {number}" for number in range(14, 20))


def test_a_log_cannot_write_to_the_terminal_by_escape_sequences(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, event(event="run_failed", level="error", error="\x1b[2Jgone\nnext"))
    assert log_end(log, 0).lines == ("run_failed:  [2Jgone next",)


def test_a_huge_log_is_read_at_its_end_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, "x" * (1 << 20), event(event="run_failed", level="error", error="the end"))
    assert log_end(log, 0).lines == ("run_failed: the end",)


def test_a_missing_log_is_said_to_be_missing(tmp_path: Path) -> None:
    assert log_end(tmp_path / "none", 0).lines == ("(the log cannot be read: No such file or directory)",)
