"""The two ends of a stream of experiences, each a process: an explorer that serves its spool, a trainer that packs."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from support import say, until_input_ends
from support_experiences import GROUP_SIZE, Size, configured, made_groups

from common.changes import Changes
from common.experience.experience import ExperienceGroup
from common.logging import configure_logging
from common.monitor.monitor import Monitor
from common.process import prepare_process
from common.rpc.server import RpcServer
from common.status import StatusBoard
from common.sync.events import ExplorerFinished, GroupsReceived, TrainerEvent
from common.sync.lineage import Lineage
from common.wire.experiences import batch_to_wire
from common.wire.revision import PROTOCOL_REVISION
from explorer_service.experience_stream import ExperienceStream, Words
from explorer_service.server import SERVICE, ExplorerServicer, Parts, add_explorer_servicer
from explorer_service.spool import Spool
from explorer_service.spool_thread import SpoolThread
from explorer_service.task_share import TaskShare
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from trainer_service.buffer.assemble import assemble
from trainer_service.buffer.queue import GroupQueue
from trainer_service.explorer_link import ExplorerLink

GROUPS_A_BATCH = 8
"""The default of `explorer.max_groups_per_batch`."""
GROUPS_A_STEP = 32
PATTERN_BATCHES = 8
"""Batches of different experiences, spooled again and again under new ordinals."""


def fill(spool: Spool, batches: int, size: Size) -> float:
    """Spools so many batches, each in a durable transaction as the explorer does; returns the seconds."""
    made = made_groups(PATTERN_BATCHES * GROUPS_A_BATCH, size)
    began = time.monotonic()
    for batch in range(batches):
        first = batch % PATTERN_BATCHES * GROUPS_A_BATCH
        groups = [
            replace(group, ordinal=batch * GROUPS_A_BATCH + place, task=batch * GROUPS_A_BATCH + place)
            for place, group in enumerate(made[first : first + GROUPS_A_BATCH])
        ]

        def make(sequence: int, groups: list[ExperienceGroup] = groups) -> bytearray:
            return batch_to_wire("explorer-0", sequence, groups, send_text=False)

        spool.append(make, len(groups), {})
    return time.monotonic() - began


async def explore(folder: Path, batches: int, size: Size) -> None:
    """Fills a spool, and serves it until the input ends."""
    config = configured()
    spool = SpoolThread()
    await spool.open(folder / "spool", config.run.name, config.explorer.id)
    seconds = await spool.call(fill, spool.counters, batches, size)
    status: StatusBoard[int] = StatusBoard(explorer_pb2.EXPLORER_STATE_EXPLORING)

    async def hello() -> explorer_pb2.Hello:
        return explorer_pb2.Hello(
            explorer_id=config.explorer.id,
            layout_hash="layout",
            tokenizer_hash="tokenizer",
            last_sequence=spool.counters.last_sequence,
            protocol_revision=PROTOCOL_REVISION,
        )

    words = Words(hello, stands=lambda: None, oldest_in_flight=lambda: None)
    stream = ExperienceStream(config, spool, status, Changes(), TaskShare(), lambda _: None, words)
    stream.finish(batches * GROUPS_A_BATCH)
    servicer = ExplorerServicer(config=config, status=status, monitor=Monitor([]), stop=cast("Any", None))
    nothing = cast("Any", None)  # of the servicer's parts the stream alone is called
    servicer.parts = Parts(nothing, nothing, stream, nothing, spool)
    server = RpcServer("127.0.0.1:0", SERVICE, config.limits)
    address = await server.start(lambda grpc_server: add_explorer_servicer(servicer, grpc_server))
    bytes_spooled = spool.counters.pending_bytes
    say(address=address, fill_seconds=seconds, bytes=bytes_spooled, experiences=batches * GROUPS_A_BATCH * GROUP_SIZE)
    await asyncio.to_thread(until_input_ends)
    await server.stop(grace=0)
    await spool.close()


class Sampling:
    """Stands for the schedule and the loop: packs every GROUPS_A_STEP groups, and notes when."""

    def __init__(self) -> None:
        self.links: dict[str, ExplorerLink] = {}
        self.queue = GroupQueue(None, Lineage(1))
        self.marks: list[tuple[float, float, int]] = []
        """(clock, CPU seconds of this process, tokens packed) after each step's worth."""
        self._changes = Changes()
        self._finished = False
        self._tokens = 0

    def feed(self, event: TrainerEvent) -> None:
        """Takes note of what a link reports."""
        if isinstance(event, GroupsReceived | ExplorerFinished):
            self._finished = self._finished or isinstance(event, ExplorerFinished)
            self._changes.notify()

    def joined(self, link: ExplorerLink) -> None:
        """As expected."""

    def tasks_changed(self) -> None:
        """Nobody is dealt any."""

    def explorer_metrics(self, explorer_id: str, values: dict[str, float]) -> None:
        """None are sent."""

    async def run(self) -> None:
        """Until the explorer has finished and all is packed."""
        self._mark()
        while True:
            await self._changes.until(lambda: len(self.queue) >= GROUPS_A_STEP or self._finished)
            groups = self.queue.take(GROUPS_A_STEP)
            if not groups:
                return
            batch = await asyncio.to_thread(assemble, groups, 1.0)
            self.queue.trained(groups, len(self.marks), applied=True)
            self._tokens += batch.tokens.numel()
            self._mark()

    def _mark(self) -> None:
        self.marks.append((time.monotonic(), time.process_time(), self._tokens))


async def receive(address: str) -> list[tuple[float, float, int]]:
    """One stream from its start to its end, through the trainer's own link."""
    sampling = Sampling()
    link = ExplorerLink(
        address,
        configured(),
        run_epoch=1,
        fingerprints=("layout", "tokenizer"),
        queue=sampling.queue,
        sync=cast("Any", sampling),
        publisher=cast("Any", None),
        status=StatusBoard(trainer_pb2.TRAINER_STATE_TRAINING),
        observer=cast("Any", sampling),
    )
    streaming = asyncio.create_task(link.run())
    packing = asyncio.create_task(sampling.run())
    await asyncio.wait((streaming, packing), return_when=asyncio.FIRST_COMPLETED)
    if streaming.done():
        streaming.result()
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    await link.close()
    return sampling.marks


async def train(addresses: list[str], rounds: int, warm: float) -> None:
    """Reads each address, in turn, so often; the first share of a stream, while windows grow, does not count."""
    for _ in range(rounds):
        for place, address in enumerate(addresses):
            marks = await receive(address)
            total = marks[-1][2]
            start = next(index for index, mark in enumerate(marks) if mark[2] >= warm * total)
            tokens = total - marks[start][2]
            say(
                place=place,
                tokens_per_s=tokens / (marks[-1][0] - marks[start][0]),
                tokens_per_cpu_s=tokens / (marks[-1][1] - marks[start][1]),
                whole_tokens_per_s=total / (marks[-1][0] - marks[1][0]),
                longest_gap_ms=1000 * max(after[0] - before[0] for before, after in pairwise(marks[start:])),
            )


def main() -> None:
    """`explorer` or `trainer`."""
    prepare_process()
    configure_logging("ERROR", "json")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    explorer = roles.add_parser("explorer")
    explorer.add_argument("folder", type=Path)
    explorer.add_argument("batches", type=int)
    explorer.add_argument("prompt", type=int)
    explorer.add_argument("response", type=int)
    trainer = roles.add_parser("trainer")
    trainer.add_argument("rounds", type=int)
    trainer.add_argument("warm", type=float)
    trainer.add_argument("addresses", nargs="+")
    arguments = parser.parse_args()
    if arguments.role == "explorer":
        size = Size(arguments.prompt, arguments.response)
        asyncio.run(explore(arguments.folder, arguments.batches, size))
    else:
        asyncio.run(train(arguments.addresses, arguments.rounds, arguments.warm))


if __name__ == "__main__":
    main()
