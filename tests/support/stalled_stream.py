"""Both ends of a stream of experiences as processes that can be stalled and weighed.

`explorer FOLDER BATCHES`: spools batches up to a limit of bytes, as the explorer's loop does, and serves them.
`trainer ADDRESS BATCHES`: reads some batches, stalls until a line comes on its input, then reads the rest.
Each says on its output, as JSON, what has happened.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash

from common.changes import Changes
from common.config.root import TandemConfig
from common.experience.experience import Experience, ExperienceGroup
from common.logging import configure_logging
from common.monitor.monitor import Monitor
from common.process import tune_allocator
from common.rpc.channel import open_channel
from common.rpc.server import RpcServer
from common.status import StatusBoard
from common.wire.bulk import BatchView, parse_stream_response
from common.wire.experiences import batch_from_view, batch_to_wire
from explorer_service.experience_stream import ExperienceStream, Words
from explorer_service.server import SERVICE, ExplorerServicer, Parts, add_explorer_servicer
from explorer_service.spool_thread import SpoolThread
from explorer_service.task_share import TaskShare
from protos.tandem.v1 import explorer_pb2
from trainer_service.explorer_link import STREAM_METHOD

TOKENS = 100_000
"""Of one batch: one experience of 0.9 MB."""
READ_BEFORE_THE_STALL = 3


def say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def config() -> TandemConfig:
    return TandemConfig.model_validate({"model": {"path": "unused"}})


def group(ordinal: int) -> ExperienceGroup:
    rng = np.random.default_rng(ordinal)
    experience = Experience(
        tokens=rng.integers(0, 32_000, TOKENS, dtype=np.int32),
        prompt_length=10,
        action_mask=np.ones(TOKENS - 10, np.uint8),
        logprobs=-rng.random(TOKENS - 10, dtype=np.float32),
        reward=1.0,
        oldest_version=0,
        newest_version=0,
    )
    return ExperienceGroup(f"task/{ordinal}", ordinal, 1, 1, [experience])


async def explore(folder: Path, batches: int) -> None:
    spool, changes = SpoolThread(), Changes()
    await spool.open(folder / "spool", config().run.name, "explorer-0")
    status: StatusBoard[int] = StatusBoard(explorer_pb2.EXPLORER_STATE_EXPLORING)

    async def hello() -> explorer_pb2.Hello:
        return explorer_pb2.Hello(explorer_id="explorer-0", last_sequence=spool.counters.last_sequence)

    words = Words(hello, stands=lambda: None, oldest_in_flight=lambda: None)
    stream = ExperienceStream(config(), spool, status, changes, TaskShare(), lambda _: None, words)
    servicer = ExplorerServicer(config=config(), status=status, monitor=Monitor([]), stop=cast("Any", None))
    nothing = cast("Any", None)  # of the servicer's parts the stream alone is called
    servicer.parts = Parts(nothing, nothing, stream, nothing, spool)
    server = RpcServer("127.0.0.1:0", SERVICE, config().limits)
    address = await server.start(lambda grpc_server: add_explorer_servicer(servicer, grpc_server))
    for ordinal in range(batches):
        made = [group(ordinal)]
        await spool.call(
            spool.counters.append,
            lambda number, made=made: batch_to_wire("explorer-0", number, made, send_text=False),
            1,
            {},
        )
        changes.notify()
    say(address=address, spooled=spool.counters.pending_bytes)
    stream.finish(batches)
    await asyncio.to_thread(sys.stdin.readline)
    await server.stop(0)
    await spool.close()


async def train(address: str, batches: int) -> None:
    digest = xxhash.xxh3_64()
    async with open_channel(address, config().limits) as channel:
        call = channel.stream_stream(
            STREAM_METHOD,
            request_serializer=explorer_pb2.StreamExperiencesRequest.SerializeToString,
            response_deserializer=bytes,
        )()
        opening = explorer_pb2.StreamOpen(run_epoch=1, run_name=config().run.name)
        await call.write(explorer_pb2.StreamExperiencesRequest(open=opening))
        await call.read()
        for number in range(1, batches + 1):
            view = parse_stream_response(await cast("Awaitable[bytes]", call.read()))
            assert isinstance(view, BatchView)
            batch = batch_from_view(view, config().limits)
            assert batch.sequence == number
            digest.update(np.ascontiguousarray(batch.groups[0].columns.tokens).data)
            del view, batch
            if number == READ_BEFORE_THE_STALL:
                say(stalled_after=number)
                await asyncio.to_thread(sys.stdin.readline)
        say(read=batches, digest=digest.hexdigest())
        call.cancel()


def expected_digest(batches: int) -> str:
    """Of the tokens of all batches."""
    digest = xxhash.xxh3_64()
    for ordinal in range(batches):
        digest.update(group(ordinal).experiences[0].tokens.data)
    return digest.hexdigest()


def main() -> None:
    tune_allocator()
    configure_logging("ERROR", "json")
    role, place, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
    asyncio.run(explore(Path(place), batches) if role == "explorer" else train(place, batches))


if __name__ == "__main__":
    main()
