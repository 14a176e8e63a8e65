"""The two services in one process, with a model so small that it takes no time: what is left is the pair itself."""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import torch
from google.protobuf.message import Message
from support import say, until_input_ends
from transformers import PreTrainedTokenizerFast

from common.config.merge import merged
from common.config.root import TandemConfig
from common.config.validate import validate
from common.logging import configure_logging
from common.process import prepare_process
from common.rpc.channel import open_channel
from common.rpc.stubs import explorer_stub, trainer_stub
from common.service import Signals, StageEnd
from common.wire.bulk import ChunkView
from explorer_service import server as explorer_server
from explorer_service.app import run_stage as run_explorer
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from trainer_service.app import run_stage as run_trainer
from trainer_service.engine.base import StepResult, TrainBatch, WeightsSnapshot
from trainer_service.engine.torch_engine import TorchTrainEngine
from trainer_service.publish import shards

IMPORTED = PreTrainedTokenizerFast
"""Here, once: transformers cannot be imported by two threads at the same time, and both services would."""
ECHO = "/benchmark.Echo/Echo"
READY_SECONDS = 60.0
STEPS_BEFORE = 3
"""Steps until the metrics that a status shows are there."""
SETTINGS: dict[str, Any] = {
    "model": {
        "architecture": {
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
        "tokenizer": "characters:0123456789srcd=",
        "max_length": 32,
    },
    "explorer": {
        "batch_size": 2,
        "group_size": 2,
        "sampling": {"max_tokens": 4},
        "threads": 1,
        "evaluation": {"at_start": False},
    },
    "trainer": {"batch_size": 2, "threads": 1},
    "taskset": {"name": "digit_skills", "options": {"split": "train"}, "epochs": None},
    "monitor": {"sinks": ["jsonl"], "log_level": "ERROR"},
}


def free_address() -> str:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def configuration(root: Path, steps: int | None) -> TandemConfig:
    """The pair below `root`, on ports of its own."""
    trainer, explorer = free_address(), free_address()
    own = {
        "run": {"root": str(root)},
        "trainer": {"address": trainer, "total_steps": steps},
        "explorer": {"address": explorer},
        "explorers": [{"address": explorer}],
    }
    return validate(merged(SETTINGS, own))


@asynccontextmanager
async def running(config: TandemConfig) -> AsyncIterator[asyncio.Task[StageEnd]]:
    """Both services; gives the trainer's."""
    explorer = asyncio.create_task(run_explorer(config, Signals()))
    trainer = asyncio.create_task(run_trainer(config, Signals()))
    try:
        yield trainer
    finally:
        for task in (trainer, explorer):
            task.cancel()
        await asyncio.gather(trainer, explorer, return_exceptions=True)


class Moments:
    """When each step ended, its weights were exported, and the first bytes of their push left and arrived."""

    def __init__(self) -> None:
        self.ended: list[float] = []
        self.exported: list[float] = []
        self.sent: list[float] = []
        self.offered: list[float] = []
        self.first_chunk: list[float] = []

    def hook(self) -> None:
        """Around the engine's two methods, the trainer's serializer and the explorer's parser."""
        train_step, export = TorchTrainEngine.train_step, TorchTrainEngine.export_weights
        serialize, parse = shards.serialize_or_pass, explorer_server.parse_push_request

        def timed_step(engine: TorchTrainEngine, batch: TrainBatch) -> StepResult:
            result = train_step(engine, batch)
            self.ended.append(time.perf_counter())
            return result

        def timed_export(engine: TorchTrainEngine) -> WeightsSnapshot:
            snapshot = export(engine)
            self.exported.append(time.perf_counter())
            return snapshot

        def timed_parse(data: bytes) -> explorer_pb2.PushWeightsRequest | ChunkView:
            request = parse(data)
            if isinstance(request, ChunkView):
                if len(self.first_chunk) < len(self.offered):
                    self.first_chunk.append(time.perf_counter())
            else:
                self.offered.append(time.perf_counter())
            return request

        def timed_serialize(message: Message | bytes) -> bytes:
            data = serialize(message)
            if not isinstance(message, bytes):
                self.sent.append(time.perf_counter())
            return data

        TorchTrainEngine.train_step = timed_step  # type: ignore[method-assign]
        TorchTrainEngine.export_weights = timed_export  # type: ignore[method-assign]
        shards.serialize_or_pass = timed_serialize
        explorer_server.parse_push_request = timed_parse


async def publish(root: Path, steps: int) -> None:
    """Trains so many steps on-policy, each of which publishes; one JSON line of milliseconds after the step's end."""
    moments = Moments()
    moments.hook()
    async with running(configuration(root, steps)) as trainer:
        await trainer
    # The first version of all is the initial one, which no step made.
    after = {
        "export": moments.exported[1:],
        "first_push_byte": moments.sent[1:],
        "arrival": moments.offered[1:],
        "first_chunk": moments.first_chunk[1:],
    }
    say(
        **{
            f"{name}_{which}_ms": 1000 * pick([time - end for end, time in zip(moments.ended, times, strict=False)])
            for name, times in after.items()
            for which, pick in (("p50", statistics.median), ("max", max))
        },
        steps=len(moments.ended),
    )


async def serve(root: Path) -> None:
    """A pair that has paused after some steps, and a bare echo beside it, until the input ends."""
    config = configuration(root, None)
    echo = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    echo.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", {"Echo": handler}),))
    echo_address = f"127.0.0.1:{echo.add_insecure_port('127.0.0.1:0')}"
    await echo.start()
    async with running(config), open_channel(config.trainer.address, config.limits) as channel:
        stub = trainer_stub(channel)
        async with asyncio.timeout(READY_SECONDS):
            await channel.channel_ready()
            request = trainer_pb2.TrainerServiceGetStatusRequest()
            while (await stub.GetStatus(request)).step < STEPS_BEFORE:  # noqa: ASYNC110 - we look from outside
                await asyncio.sleep(0.05)
            await stub.Pause(trainer_pb2.PauseRequest())
        size = len((await stub.GetStatus(request)).SerializeToString())
        say(trainer=config.trainer.address, explorer=config.explorer.address, echo=echo_address, status_bytes=size)
        await asyncio.to_thread(until_input_ends)
    await echo.stop(0)


async def answer(request: bytes, context: object) -> bytes:
    """The bare echo: no interceptor, no codec."""
    del context
    return request


async def call(addresses: dict[str, str], size: int, rounds: int) -> None:
    """Calls echo and both statuses in turn; one JSON line of microseconds."""
    limits = configuration(Path("unused"), 1).limits
    async with (
        open_channel(addresses["trainer"], limits) as trainer,
        open_channel(addresses["explorer"], limits) as explorer,
        grpc.aio.insecure_channel(addresses["echo"]) as echo,
    ):
        trainer_request = trainer_pb2.TrainerServiceGetStatusRequest()
        explorer_request = explorer_pb2.ExplorerServiceGetStatusRequest()
        trainer_status, explorer_status = trainer_stub(trainer).GetStatus, explorer_stub(explorer).GetStatus
        bare = echo.unary_unary(ECHO)
        calls = {
            "echo": lambda: bare(b"\0" * size),
            "trainer": lambda: trainer_status(trainer_request),
            "explorer": lambda: explorer_status(explorer_request),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, make in calls.items():
                began = time.perf_counter()
                await make()
                times[name].append(time.perf_counter() - began)
    settled = {name: values[rounds // 10 :] for name, values in times.items()}
    say(**{f"{name}_us": 1e6 * statistics.median(values) for name, values in settled.items()})


def main() -> None:
    """`publish STEPS`, `serve`, or `call ROUNDS BYTES TRAINER EXPLORER ECHO`."""
    prepare_process()
    configure_logging("ERROR", "json")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("publish").add_argument("steps", type=int)
    roles.add_parser("serve")
    caller = roles.add_parser("call")
    caller.add_argument("rounds", type=int)
    caller.add_argument("size", type=int)
    caller.add_argument("addresses", nargs=3)
    arguments = parser.parse_args()
    if arguments.role == "call":
        addresses = dict(zip(("trainer", "explorer", "echo"), arguments.addresses, strict=True))
        asyncio.run(call(addresses, arguments.size, arguments.rounds))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            publish(Path(folder), arguments.steps) if arguments.role == "publish" else serve(Path(folder)),
        )


if __name__ == "__main__":
    main()
