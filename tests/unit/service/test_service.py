"""Signals and exit codes of a service."""

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from common.config.root import TandemConfig
from common.errors import ConfigError, PeerUnavailable
from common.service import Signals, StageEnd, run_service

MODEL = {"architecture": {"model_type": "llama"}, "tokenizer": "characters:ab"}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def config(**more: Any) -> TandemConfig:
    return TandemConfig.model_validate({"model": MODEL, "monitor": {"log_format": "json"}, **more})


def test_a_callback_hears_of_a_signal_that_came_before_it() -> None:
    signals, heard = Signals(), []
    signals._receive(signal.SIGTERM)
    signals.subscribe(heard.append)
    assert heard == [signal.SIGTERM] == [signals.received]


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    signals = Signals()
    signals._receive(signal.SIGINT)
    signals._receive(signal.SIGINT)
    assert codes == [130]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (StageEnd(run_is_over=False), 0),
        (ConfigError("`a` is no number"), 2),
        (PeerUnavailable("no explorer for 1 seconds"), 1),
        (RuntimeError("a fault of ours"), 1),
    ],
)
def test_the_exit_code_says_how_it_ended_and_the_last_line_why(
    outcome: StageEnd | Exception, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run_stage(stage: TandemConfig, signals: Signals) -> StageEnd:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert run_service("trainer", config(), run_stage) == code
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert (str(outcome) in last) is isinstance(outcome, Exception)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_stages_and_gives_the_code(number: signal.Signals, code: int) -> None:
    ran: list[str] = []

    async def run_stage(stage: TandemConfig, signals: Signals) -> StageEnd:
        ran.append(stage.stage_name)
        signals._receive(number)
        return StageEnd(run_is_over=False)

    stages = [{"name": "one"}, {"name": "two"}]
    assert run_service("trainer", config(stages=stages), run_stage) == code
    assert ran == ["one"]


@pytest.mark.parametrize(("over", "ran"), [(False, ["one", "two"]), (True, ["one"])])
def test_stages_follow_one_another_until_somebody_asks_for_the_end(over: bool, ran: list[str]) -> None:
    names: list[str] = []

    async def run_stage(stage: TandemConfig, signals: Signals) -> StageEnd:
        names.append(stage.stage_name)
        return StageEnd(run_is_over=over)

    assert run_service("trainer", config(stages=[{"name": "one"}, {"name": "two"}]), run_stage) == 0
    assert names == ran
