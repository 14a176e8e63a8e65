"""The channel arguments of both sides, against each other over a real connection."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from common.config.root import LimitsConfig
from common.rpc import options
from common.rpc.stubs import explorer_stub
from protos.tandem.v1 import explorer_pb2
from tests.support.scripted_rpc import SECONDS, scripted_server

OPEN = explorer_pb2.StreamExperiencesRequest(open=explorer_pb2.StreamOpen())
INTERVAL_MS = 1000
"""gRPC's core sends no two pings in less."""
IDLE_SECONDS = 5.5
"""Five pings; a server forgives two that come too fast."""


def test_pings_are_slower_than_the_floor() -> None:
    assert options.PING_FLOOR_MS < options.PING_INTERVAL_MS


async def test_an_idle_stream_outlives_the_pings_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PING_INTERVAL_MS", INTERVAL_MS)
    # The second floor would end it: so the pings are really sent and the floor is really read; a misspelt argument is
    # ignored without a word.
    floors = (INTERVAL_MS // 2, 60 * INTERVAL_MS)
    async with AsyncExitStack() as held:
        calls = []
        for floor in floors:
            monkeypatch.setattr(options, "PING_FLOOR_MS", floor)
            _, _, channel = await held.enter_async_context(scripted_server())
            call = explorer_stub(channel).StreamExperiences(timeout=SECONDS)
            await call.write(OPEN)
            await call.read()
            calls.append(call)
        await asyncio.sleep(IDLE_SECONDS)
        idle, pinged_too_fast = calls
        assert not idle.done()
        await idle.write(OPEN)
        assert isinstance(await idle.read(), explorer_pb2.StreamExperiencesResponse)
        assert await pinged_too_fast.code() is grpc.StatusCode.UNAVAILABLE
        assert "pings" in str(await pinged_too_fast.details()).lower()


def test_both_sides_take_messages_of_the_same_size() -> None:
    limits = LimitsConfig(message_bytes=3 << 20)
    for side in (options.server_options(limits), options.channel_options(limits)):
        values = dict(side)
        assert len(values) == len(side), "an argument that is given twice"
        assert values["grpc.max_receive_message_length"] == values["grpc.max_send_message_length"] == 3 << 20
