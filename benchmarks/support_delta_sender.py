"""A process that pushes two neighbouring versions in turn: `support_delta_sender.py BASE.npy NEW.npy ADDRESS...`.

For each line of its input, the number of an address and an encoding (or `auto`), it pushes the other version, and says
the seconds from offer to applied, the encoding that it came by, and its bytes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import torch
from support import say
from support_push import quiet, read_weights, settings

from common.process import prepare_process
from common.rpc.channel import open_channel
from common.weights.encoding import Encoding
from common.weights.manifest import build_manifest, tensor_bytes
from common.weights.version import PolicyVersion
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.publish.choice import Choice
from trainer_service.publish.history import VersionDelta
from trainer_service.publish.shards import PeerState, ShardPublisher


class DirectedPublisher(ShardPublisher):
    """Chooses as it is told, and shows what was chosen."""

    wanted: Encoding | None = None
    chosen: tuple[Encoding, int] = (Encoding.FULL, 0)

    async def _choose(self, state: PeerState, delta: VersionDelta | None) -> tuple[Choice, torch.Tensor | None]:
        if self.wanted is None or delta is None:
            choice, data = await super()._choose(state, delta)
        elif self.wanted is Encoding.FULL:
            choice, data = Choice(self.wanted, "directed"), None
        else:
            await delta.estimate()
            encoded = await (delta.plain() if self.wanted is Encoding.DELTA else delta.packed())
            choice = Choice(self.wanted, "directed")
            data = torch.from_numpy(encoded) if encoded is not None else None
        self.chosen = (choice.encoding if data is not None else Encoding.FULL, data.numel() if data is not None else 0)
        return choice, data

    def everybody_holds(self, version: PolicyVersion) -> None:
        """All links lead to one explorer."""
        for state in self._peers.values():
            state.held = version

    def at_the_end_of(self, link: str, after: str | None) -> None:
        """The explorer is reached by another link from now on; nothing is known of its rate."""
        if link not in self._peers:
            self._peers[link] = PeerState(held=self._peers[after].held if after is not None else None)


async def serve(paths: list[str], addresses: list[str]) -> None:
    """Until the input ends."""
    snapshots = []
    for path in paths:
        weights = read_weights(Path(path))
        manifest = build_manifest(weights)
        data = torch.cat([tensor_bytes(weights[entry.name]) for entry in manifest.tensors])
        snapshots.append(WeightsSnapshot(manifest, data))
        del weights
    config = settings(Path(tempfile.gettempdir()))
    publisher = DirectedPublisher(config, 1)
    channels = [open_channel(address, config.limits) for address in addresses]
    step, before = 0, None
    while line := await asyncio.to_thread(sys.stdin.readline):
        link, wanted = line.split()
        publisher.at_the_end_of(link, before)
        publisher.wanted = None if wanted == "auto" else Encoding(wanted)
        before = link
        step += 1
        published = await publisher.prepare(step, snapshots[step % 2])
        began = time.perf_counter()
        await publisher.deliver(channels[int(link)], link, published, lambda: None)
        encoding, size = publisher.chosen
        say(seconds=time.perf_counter() - began, encoding=encoding.value, bytes=size or published.snapshot.data.numel())
        publisher.everybody_holds(published.version)
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    prepare_process()
    quiet()
    torch.set_num_threads(1)
    asyncio.run(serve(sys.argv[1:3], sys.argv[3:]))
