"""Sync method `shards`: the weights themselves, over PushWeights, in full or as what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import structlog
import torch

from common.config.root import TandemConfig
from common.errors import ProtocolViolation
from common.rpc.errors import from_rpc_error
from common.weights.encoding import Encoding
from common.weights.version import PolicyVersion
from common.wire.bulk import serialize_or_pass
from protos.tandem.v1 import explorer_pb2
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.publish.choice import VERIFY_SECONDS_A_BYTE, Choice, LinkRate, Slowness, choose
from trainer_service.publish.history import History, VersionDelta
from trainer_service.publish.publication import Delivery, Published
from trainer_service.publish.push_stream import EncodedVersion, PushStream

PUSH_METHOD = "/tandem.v1.ExplorerService/PushWeights"

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class PeerState:
    """What is known of one explorer."""

    held: PolicyVersion | None = None
    """The version that it verified last: the base of the next delta."""
    rate: LinkRate = field(default_factory=LinkRate)
    begun: EncodedVersion | None = None
    """Of a push that has not arrived: the next stream goes on with these bytes."""


class ShardPublisher:
    """Streams a snapshot to explorers; each stream goes on where an earlier one was cut."""

    def __init__(self, config: TandemConfig, run_epoch: int) -> None:
        self._run_epoch = run_epoch
        self._chunk_bytes = config.sync.chunk_bytes
        self._timeout = config.sync.timeout
        self._peers: dict[str, PeerState] = {}
        self._slowness = Slowness()
        self._history = (
            History(config.sync.delta_history_bytes, self._slowness) if config.sync.delta == "auto" else None
        )

    async def prepare(self, step: int, snapshot: WeightsSnapshot) -> Published:
        """The snapshot is all that is needed; deltas are made when an explorer can use them."""
        version = PolicyVersion(self._run_epoch, step, snapshot.manifest.manifest_hash)
        if self._history is not None:
            self._history.add(version, snapshot)
        return Published(version, snapshot, None)

    async def deliver(
        self, channel: grpc.aio.Channel, peer: str, published: Published, staged: Callable[[], None]
    ) -> Delivery:
        """Offers, sends from where the explorer wants it, and waits until it is applied."""
        if published.snapshot is None:
            raise ProtocolViolation(f"version {published.version.step} has no bytes to send")
        snapshot = published.snapshot
        state = self._peers.setdefault(peer, PeerState())
        if state.begun is None or state.begun.version != published.version:
            state.begun = await self._encode(peer, state, published.version, snapshot)
        push = channel.stream_stream(
            PUSH_METHOD,
            request_serializer=serialize_or_pass,
            response_deserializer=explorer_pb2.PushWeightsResponse.FromString,
        )

        def in_full() -> EncodedVersion:
            state.begun = _full(published.version, snapshot)
            return state.begun

        def arrived() -> None:
            self._arrived(state, stream)
            staged()

        stream = PushStream(push(), peer, state.begun, in_full, self._chunk_bytes, self._timeout)
        try:
            delivery = await stream.run(arrived)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer) from error
        finally:
            stream.cancel()
        if delivery.applied:
            self._arrived(state, stream)
        elif state.begun is stream.encoded:
            state.begun = None
        return delivery

    def _arrived(self, state: PeerState, stream: PushStream) -> None:
        """The explorer holds the version, verified."""
        if state.begun is not stream.encoded:
            return
        state.begun = None
        state.held = stream.encoded.version
        if stream.transfer is not None:
            sent, seconds = stream.transfer.sent_bytes, stream.transfer.seconds
            work = 0.0
            if stream.encoded.encoding is not Encoding.FULL:
                work = self._slowness.factor * stream.encoded.manifest.total_bytes * VERIFY_SECONDS_A_BYTE
            state.rate.observe(sent, seconds, work)
        if self._history is not None:
            self._history.retain({peer.held for peer in self._peers.values() if peer.held is not None})

    async def _encode(
        self, peer: str, state: PeerState, version: PolicyVersion, snapshot: WeightsSnapshot
    ) -> EncodedVersion:
        delta = self._history.delta(state.held, version) if self._history is not None and state.held else None
        choice, data = await self._choose(state, delta)
        if data is None:
            encoded = _full(version, snapshot)
        else:
            base = delta.base if delta is not None else None
            encoded = EncodedVersion(version, snapshot.manifest, choice.encoding, data, base)
        log.info(
            "push_encoding",
            peer=peer,
            step=version.step,
            encoding=choice.encoding.value,
            reason=choice.reason,
            bytes=encoded.data.numel(),
            of_bytes=snapshot.manifest.total_bytes,
        )
        return encoded

    async def _choose(self, state: PeerState, delta: VersionDelta | None) -> tuple[Choice, torch.Tensor | None]:
        """The encoding, and the bytes unless it is the full version."""
        if self._history is None:
            return Choice(Encoding.FULL, "sync.delta is off"), None
        if delta is None:
            return Choice(Encoding.FULL, "no earlier version is both here and at the explorer"), None
        rate, slowness = state.rate.bytes_per_second, self._slowness.factor
        choice = choose(await delta.estimate(), rate, slowness, encoded=delta.encoded)
        if choice.encoding is Encoding.FULL:
            return choice, None
        plain = await delta.plain()
        if plain is None:
            return Choice(Encoding.FULL, "a delta would be larger"), None
        # Again: the size is known now, and the encoding is done.
        choice = choose(await delta.estimate(), rate, self._slowness.factor, encoded=True)
        match choice.encoding:
            case Encoding.FULL:
                return choice, None
            case Encoding.DELTA:
                return choice, torch.from_numpy(plain)
            case Encoding.DELTA_ZSTD:
                packed = await delta.packed()
                smaller = packed.size < plain.size
                best = packed if smaller else plain
                return Choice(Encoding.DELTA_ZSTD if smaller else Encoding.DELTA, choice.reason), torch.from_numpy(best)


def _full(version: PolicyVersion, snapshot: WeightsSnapshot) -> EncodedVersion:
    return EncodedVersion(version, snapshot.manifest, Encoding.FULL, snapshot.data)
