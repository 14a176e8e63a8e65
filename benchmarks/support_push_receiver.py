"""A process that receives weights: `support_push_receiver.py KIND SOURCE`, KIND as in `KINDS`, SOURCE MiB or a file.

Says its address; when its input ends, what memory it took beside the live weights.
"""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from support import say
from support_push import CHUNK_BYTES, LoadingEngine, forget_peak, load, peak, quiet, settings, weights_of


def tandem(source: str) -> None:
    """The explorer's servicer and intake; each version is swapped in as soon as it is staged."""
    asyncio.run(_tandem(source))


async def _tandem(source: str) -> None:
    from common.changes import Changes
    from common.monitor.monitor import Monitor
    from common.rpc.server import RpcServer
    from common.status import StatusBoard
    from common.sync.events import WeightsStaged
    from explorer_service.server import SERVICE, ExplorerServicer, add_explorer_servicer
    from explorer_service.spool_thread import SpoolThread
    from explorer_service.weight_intake import WeightIntake
    from protos.tandem.v1 import explorer_pb2

    engine = LoadingEngine(weights_of(source))
    thread = ThreadPoolExecutor(1)
    swaps: set[asyncio.Task[object]] = set()

    async def apply(tensors: Mapping[str, object], run_epoch: int, step: int, *, checked_hash: str = "") -> str:
        del checked_hash
        engine.version = (run_epoch, step)
        return await asyncio.get_running_loop().run_in_executor(thread, engine.swap, tensors)

    engine.apply = apply

    def staged(event: WeightsStaged) -> None:
        task = asyncio.create_task(weights.swap_in(event.epoch, event.step))
        swaps.add(task)
        task.add_done_callback(swaps.discard)

    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder))
        spool = SpoolThread()
        await spool.open(Path(folder, "spool"), "run", "explorer")
        weights = WeightIntake(config, engine, spool, Changes(), staged)
        status: StatusBoard[int] = StatusBoard(explorer_pb2.EXPLORER_STATE_EXPLORING)
        servicer = ExplorerServicer(config=config, status=status, monitor=Monitor([]), stop=lambda _why, _end: None)
        servicer.parts = SimpleNamespace(weights=weights)
        server = RpcServer("127.0.0.1:0", SERVICE, config.limits)
        address = await server.start(lambda inner: add_explorer_servicer(servicer, inner))
        await _measured(address)
        await server.stop(0)
        await spool.close()


async def _measured(address: str) -> None:
    before = forget_peak()
    say(address=address)
    await asyncio.to_thread(sys.stdin.read)
    say(extra=peak() - before)


def naive(source: str) -> None:
    """What one would write first: proto messages joined, `torch.load`, `load_state_dict`."""
    asyncio.run(_naive(source))


async def _naive(source: str) -> None:
    import grpc
    import torch

    from protos.tandem.v1 import explorer_pb2

    live = weights_of(source)

    async def push(requests: AsyncIterator[explorer_pb2.PushWeightsRequest], _context: object) -> AsyncIterator[bytes]:
        data = b"".join([request.chunk.data async for request in requests])
        state = torch.load(io.BytesIO(data), weights_only=True)
        load(live, state)
        yield b"applied"

    handler = grpc.stream_stream_rpc_method_handler(push, explorer_pb2.PushWeightsRequest.FromString, bytes)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("naive", {"Push": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await _measured(f"127.0.0.1:{port}")
    await server.stop(0)


def tcp(source: str, *, hashing: bool = True) -> None:
    """A socket, read into place; with `hashing`, each chunk is checked while it is in the cache, and loaded at last."""
    import numpy as np
    import torch
    import xxhash

    from common.weights.manifest import build_manifest, tensor_views

    live = weights_of(source)
    manifest = build_manifest(live)
    buffer = np.empty(manifest.total_bytes, dtype=np.uint8)
    listener = socket.create_server(("127.0.0.1", 0))
    before = forget_peak()
    say(address=f"127.0.0.1:{listener.getsockname()[1]}")

    def serve() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        view, checksum = memoryview(buffer), memoryview(bytearray(8))
        while True:
            for start in range(0, len(view), CHUNK_BYTES):
                if hashing and not _fill(connection, checksum):
                    return
                piece = view[start : start + CHUNK_BYTES]
                if not _fill(connection, piece):
                    return
                if hashing and xxhash.xxh3_64_digest(piece) != bytes(checksum):
                    raise RuntimeError("a wrong checksum")
            if hashing:
                load(live, tensor_views(manifest, torch.from_numpy(buffer)))
            connection.sendall(b"!")

    threading.Thread(target=serve, daemon=True).start()
    sys.stdin.read()
    say(extra=peak() - before)


def tcp_bare(source: str) -> None:
    """A socket, read into place, and nothing else."""
    tcp(source, hashing=False)


def _fill(connection: socket.socket, view: memoryview) -> bool:
    position = 0
    while position < len(view):
        count = connection.recv_into(view[position:])
        if count == 0:
            return False
        position += count
    return True


KINDS = {"tandem": tandem, "naive": naive, "tcp": tcp, "tcp_bare": tcp_bare}

if __name__ == "__main__":
    if sys.argv[1] != "naive":
        from common.process import prepare_process

        prepare_process()
    import torch

    quiet()
    torch.set_num_threads(1)
    KINDS[sys.argv[1]](sys.argv[2])
