from __future__ import annotations

import io
import json
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from common.logging import bind_context, configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def fail(message: str) -> None:
    hidden = "local" + "value"
    raise ValueError(message, len(hidden))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_each_event_is_a_line_of_json_in_utc() -> None:
    stream = io.StringIO()
    configure_logging("INFO", "auto", stream)
    structlog.get_logger("x").info("weights applied", version=7, text="two\nlines")
    (line,) = lines(stream)
    assert (line["event"], line["version"], line["text"], line["level"]) == ("weights applied", 7, "two\nlines", "info")
    stamp = datetime.fromisoformat(str(line["timestamp"]))
    assert stamp.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - stamp) < timedelta(minutes=5)


def test_a_terminal_gets_readable_lines_and_the_format_can_be_forced() -> None:
    terminal = Terminal()
    configure_logging("INFO", "auto", terminal)
    structlog.get_logger().info("hello", a=1)
    assert "hello" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")
    forced = Terminal()
    configure_logging("INFO", "json", forced)
    structlog.get_logger().info("hello")
    assert lines(forced)[0]["event"] == "hello"
    plain = io.StringIO()
    configure_logging("INFO", "console", plain)
    structlog.get_logger().info("hello")
    assert "\x1b" not in plain.getvalue()


def test_what_is_bound_once_stands_in_every_line_of_both_loggers() -> None:
    stream = io.StringIO()
    configure_logging("INFO", "json", stream)
    bind_context(run="r", stage="s", service="trainer", epoch=2)
    structlog.get_logger().info("ours")
    logging.getLogger("some.library").warning("theirs %d", 5)
    for line in lines(stream):
        assert (line["run"], line["stage"], line["service"], line["epoch"]) == ("r", "s", "trainer", 2)
    assert [line["event"] for line in lines(stream)] == ["ours", "theirs 5"]
    assert lines(stream)[1]["logger"] == "some.library"


def test_the_level_holds_for_both_loggers() -> None:
    stream = io.StringIO()
    configure_logging("WARNING", "json", stream)
    structlog.get_logger().info("no")
    logging.getLogger("library").info("no")
    structlog.get_logger().warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_warnings_of_libraries_are_logged() -> None:
    stream = io.StringIO()
    configure_logging("INFO", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old name", DeprecationWarning, stacklevel=1)
    assert "old name" in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_exception_is_written_with_its_traceback_and_without_local_variables(form: str) -> None:
    stream = io.StringIO()
    configure_logging("INFO", form, stream)  # type: ignore[arg-type]
    try:
        fail("broken")
    except ValueError:
        structlog.get_logger().exception("failed")
    text = stream.getvalue()
    assert "ValueError: ('broken', 10)" in text
    assert "Traceback" in text
    assert "localvalue" not in text


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_never_written(form: str) -> None:
    stream = io.StringIO()
    configure_logging("DEBUG", form, stream)  # type: ignore[arg-type]
    log = structlog.get_logger()
    log.info("call", token="s3cret", Authorization="s3cret", tokens=12)  # noqa: S106 - what is tested
    log.info(
        "call", metadata=[("authorization", "Bearer s3cret"), ("other", "x")], nested={"deep": {"token": "s3cret"}}
    )
    log.info("sent Bearer s3cret, refused")
    logging.getLogger("library").warning("header authorization: bearer %s", "s3cret")
    try:
        fail("Bearer s3cret")
    except ValueError:
        log.exception("failed")
    assert "s3cret" not in stream.getvalue()
    assert "12" in stream.getvalue()


def test_numbers_that_json_does_not_know_leave_the_line_valid() -> None:
    stream = io.StringIO()
    configure_logging("INFO", "json", stream)
    structlog.get_logger().info("x", loss=math.nan, many=[math.inf, 1.0], path=object())
    (line,) = lines(stream)
    assert line["loss"] is None
    assert line["many"] == [None, 1.0]


def test_the_default_stream_is_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging()
    structlog.get_logger().info("hello")
    assert lines(stream)[0]["event"] == "hello"
