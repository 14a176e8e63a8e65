"""The probe of the container health checks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.rpc.health_probe import main, serving_status


@dataclass(frozen=True, slots=True)
class Peer:
    target: str
    health: health.HealthServicer


@pytest.fixture
def peer() -> Iterator[Peer]:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Peer(f"127.0.0.1:{port}", servicer)
    server.stop(None).wait(5)


def test_a_serving_peer_is_healthy(peer: Peer) -> None:
    with grpc.insecure_channel(peer.target) as channel:
        assert serving_status(channel) == "SERVING"
    assert main([peer.target]) == 0


def test_a_peer_that_does_not_serve_is_not_healthy(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert main([peer.target]) == 1
    assert "NOT_SERVING" in capsys.readouterr().err


def test_one_service_can_be_asked_for(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.health.set("tandem.v1.TrainerService", health_pb2.HealthCheckResponse.SERVING)
    assert main([peer.target, "--service", "tandem.v1.TrainerService"]) == 0
    assert main([peer.target, "--service", "tandem.v1.NoSuchService"]) == 1
    assert "NOT_FOUND" in capsys.readouterr().err


def test_nobody_listening_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    assert main([f"127.0.0.1:{port}"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_a_peer_that_hangs_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()

    class Hanging(health_pb2_grpc.HealthServicer):
        def Check(self, request: object, context: object) -> health_pb2.HealthCheckResponse:  # noqa: N802 - gRPC's name
            release.wait(30)
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(Hanging(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert main([f"127.0.0.1:{port}", "--timeout", "0.3"]) == 1
        assert "DEADLINE_EXCEEDED" in capsys.readouterr().err
    finally:
        release.set()
        server.stop(None).wait(5)
