"""What anybody on the network can do to a service, and that it goes on answering with its memory bounded.

The server runs in a process of its own, asks for tokens, and closes what idles sooner than in a run. Bounds of memory are
given with what was measured.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.config.root import LimitsConfig
from common.config.security import Role, SecurityConfig
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller
from common.rpc.stubs import explorer_stub, trainer_stub
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from tests.support import raw_http2 as raw
from tests.support.abused_server import PAYLOAD, AbusedServer, abused_server
from tests.support.secured import secured, token_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = 60.0
MIB = 1 << 20
LIMITS = {"message_bytes": 4 * MIB}
SOONER = {"HANDSHAKE_TIMEOUT_MS": 2_000, "CONNECTION_IDLE_MS": 3_000}
OPEN = explorer_pb2.StreamExperiencesRequest(open=explorer_pb2.StreamOpen())
STATUS = trainer_pb2.TrainerServiceGetStatusRequest()
GET_STATUS = "/tandem.v1.TrainerService/GetStatus"
WATCH = "/tandem.v1.TrainerService/WatchMetrics"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Abused:
    """The server, and its honest peers."""

    def __init__(self, server: AbusedServer, security: SecurityConfig, folder: Path) -> None:
        self.server = server
        self.security = security
        self._folder = folder

    def channel(self, role: Role) -> grpc.aio.Channel:
        """A connection of its own."""
        caller = Caller(self.security, role, Role.TRAINER)
        return open_channel(self.server.address, LimitsConfig(**LIMITS), caller)

    def metadata(self, role: Role) -> dict[str, str]:
        """The role's token as a raw header."""
        return {"authorization": f"Bearer {(self._folder / f'{role}.token').read_text().strip()}"}

    async def answers(self) -> None:
        """A new peer is answered, now."""
        async with self.channel(Role.EXPLORER) as channel:
            await trainer_stub(channel).GetStatus(STATUS, timeout=SECONDS)

    @asynccontextmanager
    async def growing_less_than(self, bound: int) -> AsyncIterator[None]:
        """Peak memory while the block runs, and what remains, are bounded."""
        await self.answers()
        before = peak = self.server.resident
        ended = asyncio.Event()

        async def watch() -> None:
            nonlocal peak
            while not ended.is_set():
                peak = max(peak, self.server.resident)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            ended.set()
            await watching
        await self.answers()
        peak = max(peak, self.server.resident)
        assert peak - before < bound, f"{(peak - before) / MIB:.1f} MiB"


@pytest.fixture(scope="module")
def abused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abused]:
    folder = tmp_path_factory.mktemp("abuse")
    settings = token_settings(folder / "tokens")
    with abused_server(folder, settings, LIMITS, SOONER) as server:
        yield Abused(server, secured(settings), folder / "tokens")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await holds():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.1)


async def talk(call: Any) -> None:
    """One message to and fro."""
    await call.write(OPEN)
    assert (await call.read()).WhichOneof("message") == "hello"


async def test_a_thousand_idle_connections_and_slow_talkers_hold_up_no_peer_and_are_closed(abused: Abused) -> None:
    # 512 are accepted, 7 MiB were measured.
    async with abused.channel(Role.OPERATOR) as channel, abused.growing_less_than(24 * MIB):
        stream = explorer_stub(channel).StreamExperiences(timeout=SECONDS)
        await talk(stream)
        begun = raw.PREFACE + raw.settings({})
        dribble = iter(raw.call(GET_STATUS, 1, {"x": "y" * 100}))
        silent = [raw.connected(abused.server.address) for _ in range(300)]
        idle = [raw.connected(abused.server.address, begun) for _ in range(400)]
        slow = [raw.connected(abused.server.address, raw.PREFACE[:8]) for _ in range(150)]
        slower = [raw.connected(abused.server.address, begun) for _ in range(150)]
        try:
            for place in range(8, 12):
                for connection in slow:
                    raw.send(connection, raw.PREFACE[place : place + 1])
                byte = bytes((next(dribble),))
                for connection in slower:
                    raw.send(connection, byte)
                await talk(stream)
            assert abused.server.open_files < 600

            async def all_closed() -> bool:
                byte = bytes((next(dribble, 0),))
                for connection in slower:
                    raw.send(connection, byte)
                await talk(stream)
                return all(raw.is_closed(one) for one in (*silent, *idle, *slow, *slower))

            await until(all_closed)
        finally:
            for connection in (*silent, *idle, *slow, *slower):
                connection.close()
        stream.cancel()


async def test_strangers_are_refused_before_what_they_send_is_read(abused: Abused) -> None:
    # 40 connections with 256 calls each that begin a message of 4 MiB and never end it: 160 MiB are sent, and 39 MiB were
    # measured, in the windows of HTTP/2.
    async with abused.growing_less_than(80 * MIB):
        part = b"\0" * 16_000
        connections = []
        for _ in range(40):
            connection = raw.connected(abused.server.address, raw.PREFACE + raw.settings({}))
            for stream in range(1, 512, 2):
                head = raw.call(GET_STATUS, stream, {})
                connection.settimeout(0.5)
                if not raw.send(connection, head + raw.frame(raw.DATA, 0, stream, raw.message(4 * MIB, part))):
                    break
            connections.append(connection)
            await abused.answers()
        for connection in connections:
            connection.close()


async def test_streams_that_one_role_leaves_open_keep_no_other_role_out(abused: Abused) -> None:
    async with abused.channel(Role.OPERATOR) as channel, abused.growing_less_than(24 * MIB):
        held = [explorer_stub(channel).StreamExperiences() for _ in range(64)]
        for call in held:
            await talk(call)
        more = [explorer_stub(channel).StreamExperiences() for _ in range(936)]
        async with abused.channel(Role.EXPLORER) as other:
            for _ in range(20):
                await trainer_stub(other).GetStatus(STATUS, timeout=SECONDS)
        for call in held:
            await talk(call)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await more[-1].read()
        # The 256 that a connection may open are told why; gRPC itself refuses the others.
        assert refused.value.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
        for call in (*held, *more):
            call.cancel()


async def test_those_who_never_read_what_they_asked_for_cost_a_few_messages_each(abused: Abused) -> None:
    # WatchMetrics sends without end; the clients' windows let nothing through. 64 calls are admitted; 4 messages each
    # were measured: as the text that Python holds, as bytes, and twice in gRPC.
    async with abused.growing_less_than(64 * 8 * PAYLOAD):
        first = raw.PREFACE + raw.settings({raw.INITIAL_WINDOW_SIZE: 0})
        connections = []
        for _ in range(8):
            connection = raw.connected(abused.server.address, first)
            for stream in range(1, 2 * 16, 2):
                head = raw.call(WATCH, stream, abused.metadata(Role.OPERATOR))
                raw.send(connection, head + raw.frame(raw.DATA, 1, stream, raw.message(0)))
            connections.append(connection)
        for _ in range(10):
            await abused.answers()
            await asyncio.sleep(0.1)
        for connection in connections:
            connection.close()


async def test_twenty_thousand_calls_that_are_reset_at_once_leave_nothing(abused: Abused) -> None:
    # 3 MiB were measured.
    async with abused.growing_less_than(16 * MIB):
        for _ in range(20):
            with raw.connected(abused.server.address, raw.PREFACE + raw.settings({})) as connection:
                for stream in range(1, 2000, 2):
                    reset = raw.frame(raw.RST_STREAM, 0, stream, raw.CANCEL.to_bytes(4, "big"))
                    if not raw.send(connection, raw.call(GET_STATUS, stream, {}) + reset):
                        break
            await abused.answers()


async def cancelled(abused: Abused, streams: int) -> None:
    async with abused.channel(Role.OPERATOR) as channel:
        for _ in range(streams // 50):
            calls = [explorer_stub(channel).StreamExperiences() for _ in range(50)]
            for call in calls:
                await call.write(OPEN)
            for call in calls:
                await call.read()
            for call in calls:
                call.cancel()


async def test_twenty_thousand_cancelled_streams_leave_nothing(abused: Abused) -> None:
    # 130 bytes a stream are lost in gRPC itself (a bare grpc.aio server loses as many), nothing in Python: 1 to 3 MiB. One
    # task that is left behind by each would be 80.
    await cancelled(abused, 2_000)
    async with abused.growing_less_than(5 * MIB):
        await cancelled(abused, 20_000)


async def test_reflection_that_is_hammered_answers_and_so_does_everything_else(abused: Abused) -> None:
    async with abused.channel(Role.OPERATOR) as channel, abused.growing_less_than(16 * MIB):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def hammer() -> None:
            call = stub.ServerReflectionInfo(timeout=SECONDS)
            for number in range(100):
                request = (
                    {"file_containing_symbol": "tandem.v1.TrainerService"} if number % 2 else {"list_services": ""}
                )
                await call.write(reflection_pb2.ServerReflectionRequest(**request))
                assert (await call.read()).WhichOneof("message_response") != "error_response"
            await call.done_writing()

        hammering = asyncio.gather(*(hammer() for _ in range(32)))
        while not hammering.done():
            await abused.answers()
        await hammering


@pytest.mark.parametrize("role", [None, Role.EXPLORER])
async def test_a_bomb_and_a_message_over_the_limit_are_refused_without_being_unpacked(
    abused: Abused, role: Role | None
) -> None:
    metadata = tuple(abused.metadata(role).items()) if role is not None else ()
    # 14 MiB were measured; a message of the limit's size, 4 MiB, exists several times on its way.
    async with (
        abused.growing_less_than(32 * MIB),
        grpc.aio.insecure_channel(abused.server.address, options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        call = channel.unary_unary(GET_STATUS)
        for size in (5 * MIB, 100 * MIB):
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate, None):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(b"\0" * size, timeout=SECONDS, metadata=metadata, compression=compression)
                if role is None:
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                else:
                    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
