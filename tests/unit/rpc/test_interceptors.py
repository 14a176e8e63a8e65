"""Calls through a real server: what a peer sees of our errors, and that nothing of a call outlives it."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from common.config.root import LimitsConfig
from common.errors import ConfigError, LimitExceeded, MalformedData, StaleEpoch
from common.rpc.errors import from_rpc_error
from common.rpc.server import RpcServer
from common.rpc.stubs import explorer_stub, trainer_stub
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from tests.support.scripted_rpc import SECONDS, scripted_server, until

PRIVATE = "what is not for others"
OPEN = explorer_pb2.StreamExperiencesRequest(open=explorer_pb2.StreamOpen())
STATUS = explorer_pb2.ExplorerServiceGetStatusRequest()
NO_MESSAGE = b"\xff\xff\xff"


async def unary(channel: grpc.aio.Channel) -> None:
    """One call of each kind; raises what it ends with."""
    await explorer_stub(channel).GetStatus(STATUS, timeout=SECONDS)


async def server_stream(channel: grpc.aio.Channel) -> None:
    async for _ in trainer_stub(channel).WatchMetrics(trainer_pb2.WatchMetricsRequest(), timeout=SECONDS):
        pass


async def both_streams(channel: grpc.aio.Channel) -> None:
    call = explorer_stub(channel).StreamExperiences(timeout=SECONDS)
    await call.write(OPEN)
    async for _ in call:
        pass


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """The error that it ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


KINDS = pytest.mark.parametrize("call", [unary, server_stream, both_streams])


@KINDS
async def test_our_errors_reach_the_peer_with_code_reason_and_metadata(call: Any) -> None:
    async with scripted_server() as (scripted, _, channel):
        scripted.error = StaleEpoch("an earlier trainer", epoch=3, newest=7)
        error = await error_of(call(channel))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == "an earlier trainer"
        again = from_rpc_error(error, "peer")
        assert isinstance(again, StaleEpoch)
        assert again.metadata == {"epoch": "3", "newest": "7"}


@KINDS
async def test_an_unhandled_exceptions_text_does_not_reach_the_peer(call: Any) -> None:
    async with scripted_server() as (scripted, _, channel):
        scripted.error = ValueError(PRIVATE)
        with capture_logs() as logs:
            error = await error_of(call(channel))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert PRIVATE not in str(error)
        assert PRIVATE not in str(error.trailing_metadata())
        (entry,) = [entry for entry in logs if entry["event"] == "rpc_failed"]
        assert str(entry["exc_info"]) == PRIVATE


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("unary_unary", "ExplorerService/GetStatus"),
        ("unary_stream", "TrainerService/WatchMetrics"),
        ("stream_stream", "ExplorerService/StreamExperiences"),
    ],
)
async def test_bytes_that_are_no_message_are_the_peers_fault(kind: str, method: str) -> None:
    async with scripted_server() as (_, server, channel):
        call = getattr(channel, kind)(f"/tandem.v1.{method}")

        async def sent() -> None:
            if kind == "unary_unary":
                await call(NO_MESSAGE, timeout=SECONDS)
                return
            stream = call(iter([NO_MESSAGE]) if kind == "stream_stream" else NO_MESSAGE, timeout=SECONDS)
            async for _ in stream:
                pass

        error = await error_of(sent())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(from_rpc_error(error, "peer"), MalformedData)
        await until(lambda: server.open_calls == 0)


async def test_an_unknown_method_is_unimplemented() -> None:
    async with scripted_server() as (_, _, channel):
        for name in ("/tandem.v1.ExplorerService/Nothing", "/nothing/Nothing", "/", "/tandem.v1.ExplorerService/"):
            error = await error_of(channel.unary_unary(name)(b"", timeout=SECONDS))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED, name
        await unary(channel)


async def test_a_message_over_the_limit_is_refused_and_the_next_one_is_served() -> None:
    async with scripted_server(message_bytes=1 << 20) as (_, server, channel):
        # The channel's own limit would stop it here.
        async with grpc.aio.insecure_channel(server.address) as careless:
            error = await error_of(
                careless.unary_unary("/tandem.v1.ExplorerService/GetStatus")(bytes(2 << 20), timeout=SECONDS)
            )
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(1 << 20) in str(error.details())
        await unary(channel)
        assert server.open_calls == 0


async def test_calls_over_the_limit_are_refused_while_health_answers() -> None:
    async with scripted_server(streams=2) as (_, server, channel):
        await server.set_serving(serving=True)
        held = [explorer_stub(channel).StreamExperiences() for _ in range(2)]
        for call in held:
            await call.write(OPEN)
            await call.read()
        for kind in (unary, server_stream, both_streams):
            error = await error_of(kind(channel))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "limits.streams" in str(error.details())
            assert isinstance(from_rpc_error(error, "peer"), LimitExceeded)
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        held[0].cancel()
        await until(lambda: server.open_calls == 1)
        await unary(channel)


async def test_cancelled_streams_leave_neither_calls_nor_tasks() -> None:
    async with scripted_server(streams=512) as (scripted, server, channel):
        await both_streams_once(channel)
        before = len(asyncio.all_tasks())
        for _ in range(10):
            calls = [explorer_stub(channel).StreamExperiences() for _ in range(20)]
            for call in calls:
                await call.write(OPEN)
                await call.read()
            assert server.open_calls == len(calls)
            for call in calls:
                call.cancel()
            await until(lambda: server.open_calls == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert scripted.begun == scripted.ended == 201


async def both_streams_once(channel: grpc.aio.Channel) -> None:
    call = explorer_stub(channel).StreamExperiences(timeout=SECONDS)
    await call.write(OPEN)
    await call.done_writing()
    async for _ in call:
        pass


async def test_a_call_that_is_cut_while_it_writes_ends_at_once() -> None:
    async with scripted_server() as (scripted, server, channel):
        # Nobody reads: the method is held in a write when its peer goes.
        scripted.payload = "x" * (1 << 20)
        calls = [trainer_stub(channel).WatchMetrics(trainer_pb2.WatchMetricsRequest()) for _ in range(3)]
        await until(lambda: scripted.begun == len(calls))
        await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
        await until(lambda: server.open_calls == 0)
        assert scripted.ended == len(calls)


async def test_a_deadline_of_the_peer_ends_the_call_here_too() -> None:
    async with scripted_server() as (scripted, server, channel):
        call = explorer_stub(channel).StreamExperiences(timeout=0.2)
        await call.write(OPEN)
        await call.read()
        assert (await call.code()) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.open_calls == 0)
        assert scripted.ended == 1


async def test_stopping_with_open_streams_is_no_failure() -> None:
    async with scripted_server() as (scripted, server, channel):
        call = explorer_stub(channel).StreamExperiences()
        await call.write(OPEN)
        await call.read()
        with capture_logs() as logs:
            await server.stop(0)
            await until(lambda: server.open_calls == 0)
        assert (await call.code()) in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert scripted.ended == 1
        assert [entry for entry in logs if entry["event"] == "rpc_failed"] == []


async def test_a_second_server_on_the_port_is_refused() -> None:
    async with scripted_server() as (_, server, _):
        second = RpcServer(server.address, "tandem.v1.ExplorerService", LimitsConfig())
        with pytest.raises(ConfigError, match=server.address):
            await second.start(lambda _: None)
        await second.stop(0)


async def test_health_follows_what_the_service_says() -> None:
    async with scripted_server() as (_, server, channel):
        health: Any = health_pb2_grpc.HealthStub(channel)
        seen: list[int] = []
        for serving in (False, True, False):
            await server.set_serving(serving=serving)
            for name in ("", "tandem.v1.ExplorerService"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS)
                seen.append(answer.status)
        no, yes = health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING
        assert seen == [no, no, yes, yes, no, no]
        error = await error_of(health.Check(health_pb2.HealthCheckRequest(service="unknown"), timeout=SECONDS))
        assert error.code() is grpc.StatusCode.NOT_FOUND
