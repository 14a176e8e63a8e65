"""`tandem status` against both services, a stranger, and nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from common.cli.app import main
from tests.support.canned_status import ExplorerServicer, TrainerServicer, add


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """Of a trainer, an explorer, and a server that is neither; healthy but for the explorer."""
    servers, found = [], {}
    for name, servicer in {"trainer": TrainerServicer(), "explorer": ExplorerServicer(), "stranger": None}.items():
        server = grpc.server(ThreadPoolExecutor(2))
        if servicer is not None:
            add(servicer, server)
        if name == "trainer":
            health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        found[name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
    yield found
    for server in servers:
        server.stop(None).wait(5)


def tandem(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["tandem", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_trainer_shows_its_step_its_waits_and_its_explorers(
    addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert tandem(monkeypatch, "status", addresses["trainer"]) == 0
    text = capsys.readouterr().out
    for part in (
        f"trainer at {addresses['trainer']}, run canned, stage main: waiting for experiences",
        "7 of 10",
        "version 6 (epoch 2, 0123456789a…)",
        "waits for 8 groups, for ",
        "gives up in ",
        "10.0.0.7:50052",
        "connected",
        "reward/mean",
    ):
        assert part in text


def test_an_explorer_is_recognized(
    addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert tandem(monkeypatch, "status", addresses["explorer"]) == 0
    text = capsys.readouterr().out
    assert f"explorer explorer-0 at {addresses['explorer']}, run canned, stage main: waiting for sync" in text
    assert "9 made, acknowledged up to 7, 2 in the spool" in text


def test_json_is_one_line_that_names_the_service_and_keeps_zeros(
    addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem(monkeypatch, "status", addresses["trainer"], "--json") == 0
    (text,) = capsys.readouterr().out.splitlines()
    status = json.loads(text)
    assert status["service"] == "trainer"
    assert status["state"] == "TRAINER_STATE_WAITING_FOR_EXPERIENCES"
    assert status["waits"][0]["waiting_for"] == "8 groups"
    assert status["explorers"][0]["finished"] is False
    assert tandem(monkeypatch, "status", addresses["explorer"], "--json") == 0
    assert json.loads(capsys.readouterr().out)["service"] == "explorer"


def test_nobody_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert tandem(monkeypatch, "status", "127.0.0.1:1", "--timeout", "2") == 1
    (text,) = capsys.readouterr().err.splitlines()
    assert text.startswith("tandem: 127.0.0.1:1 does not answer (UNAVAILABLE)")


def test_another_kind_of_server_is_said_to_be_another(
    addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem(monkeypatch, "status", addresses["stranger"]) == 1
    assert "is neither a trainer nor an explorer" in capsys.readouterr().err


def test_health_is_a_word_and_an_exit_code(
    addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem(monkeypatch, "status", addresses["trainer"], "--health") == 0
    assert capsys.readouterr().out == "SERVING\n"
    assert tandem(monkeypatch, "status", "127.0.0.1:1", "--health") == 1
    assert "UNAVAILABLE" in capsys.readouterr().err
