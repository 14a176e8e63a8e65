"""A process that sends weights: `support_push_sender.py KIND MEGABYTES ADDRESS...`.

For each line of its input, a number N, it pushes one version to the first N addresses at once, and says the seconds
from offer to applied.
When its input ends it says what memory it took beside the weights.
"""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from support import say
from support_push import CHUNK_BYTES, forget_peak, made_weights, peak, quiet, settings


async def _commanded(push: Callable[[int], Awaitable[None]]) -> None:
    before = forget_peak()
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await push(int(line))
        say(seconds=time.perf_counter() - began)
    say(extra=peak() - before)


async def tandem(megabytes: int, addresses: list[str]) -> None:
    """The trainer's publisher, always in full."""
    from common.rpc.channel import open_channel
    from common.weights.manifest import build_manifest, tensor_bytes
    from trainer_service.engine.base import WeightsSnapshot
    from trainer_service.publish.shards import ShardPublisher

    config = settings(Path(tempfile.gettempdir()), delta="off")
    publisher = ShardPublisher(config, 1)
    channels = [open_channel(address, config.limits) for address in addresses]
    weights = made_weights(megabytes)
    manifest = build_manifest(weights)
    import torch

    snapshot = WeightsSnapshot(manifest, torch.cat([tensor_bytes(weights[entry.name]) for entry in manifest.tensors]))
    del weights
    step = 0

    async def push(count: int) -> None:
        nonlocal step
        step += 1
        published = await publisher.prepare(step, snapshot)
        await asyncio.gather(
            *(
                publisher.deliver(channel, address, published, lambda: None)
                for channel, address in list(zip(channels, addresses, strict=True))[:count]
            )
        )

    await _commanded(push)
    for channel in channels:
        await channel.close()


async def naive(megabytes: int, addresses: list[str]) -> None:
    """What one would write first: `torch.save`, cut into proto messages."""
    import grpc
    import torch

    from protos.tandem.v1 import explorer_pb2, weights_pb2

    weights = made_weights(megabytes)
    channel = grpc.aio.insecure_channel(addresses[0])
    method = channel.stream_stream("/naive/Push", explorer_pb2.PushWeightsRequest.SerializeToString, bytes)

    async def requests(data: bytes) -> AsyncIterator[explorer_pb2.PushWeightsRequest]:
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = weights_pb2.WeightChunk(offset=start, data=data[start : start + CHUNK_BYTES])
            yield explorer_pb2.PushWeightsRequest(chunk=chunk)

    async def push(count: int) -> None:
        del count
        stream = io.BytesIO()
        torch.save(weights, stream)
        async for _ in method(requests(stream.getvalue())):
            pass

    await _commanded(push)
    await channel.close()


async def tcp(megabytes: int, addresses: list[str], *, hashing: bool = True) -> None:
    """Sockets, each written by a thread; with `hashing`, each chunk follows its checksum."""
    import torch
    import xxhash

    data = memoryview(
        torch.cat([tensor.reshape(-1) for tensor in made_weights(megabytes).values()]).view(torch.uint8).numpy()
    )
    connections = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        connections.append(socket.create_connection((host, int(port))))
        connections[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(connection: socket.socket) -> None:
        for start in range(0, len(data), CHUNK_BYTES):
            piece = data[start : start + CHUNK_BYTES]
            if hashing:
                connection.sendall(xxhash.xxh3_64_digest(piece))
            connection.sendall(piece)
        if connection.recv(1) != b"!":
            raise RuntimeError("the receiver has gone")

    async def push(count: int) -> None:
        threads = [threading.Thread(target=send, args=(connection,)) for connection in connections[:count]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    await _commanded(push)
    for connection in connections:
        connection.close()


async def tcp_bare(megabytes: int, addresses: list[str]) -> None:
    """Sockets, and nothing else."""
    await tcp(megabytes, addresses, hashing=False)


KINDS = {"tandem": tandem, "naive": naive, "tcp": tcp, "tcp_bare": tcp_bare}

if __name__ == "__main__":
    if sys.argv[1] != "naive":
        from common.process import prepare_process

        prepare_process()
    import torch

    quiet()
    torch.set_num_threads(1)
    asyncio.run(KINDS[sys.argv[1]](int(sys.argv[2]), sys.argv[3:]))
