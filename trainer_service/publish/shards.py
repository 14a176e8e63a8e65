"""Sync method `shards`: the weights themselves, over PushWeights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import Message

from common.config.root import TandemConfig
from common.errors import ManifestMismatch, ProtocolViolation, WaitTimedOut
from common.rpc.errors import from_rpc_error
from common.rpc.stubs import read
from common.weights.shards import chunks
from common.weights.version import PolicyVersion
from common.wire.bulk import serialize_or_pass, serialize_push_chunk
from common.wire.manifests import manifest_to_proto
from common.wire.versions import version_from_proto, version_to_proto
from protos.tandem.v1 import explorer_pb2, weights_pb2
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.publish.publication import Delivery, Published

PUSH_METHOD = "/tandem.v1.ExplorerService/PushWeights"


class ShardPublisher:
    """Streams a snapshot to explorers; each stream goes on where an earlier one was cut."""

    def __init__(self, config: TandemConfig, run_epoch: int) -> None:
        self._run_epoch = run_epoch
        self._chunk_bytes = config.sync.chunk_bytes
        self._timeout = config.sync.timeout

    async def prepare(self, step: int, snapshot: WeightsSnapshot) -> Published:
        """The snapshot is all that is needed."""
        return Published(PolicyVersion(self._run_epoch, step, snapshot.manifest.manifest_hash), snapshot, None)

    async def deliver(
        self, channel: grpc.aio.Channel, peer: str, published: Published, staged: Callable[[], None]
    ) -> Delivery:
        """Offers, sends from where the explorer wants it, and waits until it is applied."""
        if published.snapshot is None:
            raise ProtocolViolation(f"version {published.version.step} has no bytes to send")
        push = channel.stream_stream(
            PUSH_METHOD,
            request_serializer=serialize_or_pass,
            response_deserializer=explorer_pb2.PushWeightsResponse.FromString,
        )
        stream = _PushStream(push(), peer, published.version, published.snapshot, self._chunk_bytes, self._timeout)
        try:
            return await stream.run(staged)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer) from error
        finally:
            stream.cancel()


@dataclass(slots=True, eq=False)
class _PushStream:
    """One call of PushWeights: sends chunks while it listens."""

    call: grpc.aio.StreamStreamCall[Message | bytes, explorer_pb2.PushWeightsResponse]
    peer: str
    version: PolicyVersion
    snapshot: WeightsSnapshot
    chunk_bytes: int
    timeout: float
    sender: asyncio.Task[None] | None = field(default=None, init=False)

    async def run(self, staged: Callable[[], None]) -> Delivery:
        await self.call.write(explorer_pb2.PushWeightsRequest(offer=self._offer()))
        while True:
            response = await self._read()
            match response.WhichOneof("message"):
                case "accept":
                    await self._send_from(response.accept.resume_at)
                case "resend":
                    await self._send_from(response.resend.offset)
                case "staged":
                    staged()
                case "applied":
                    applied = response.applied
                    version = version_from_proto(applied.version)
                    if version != self.version:
                        raise ManifestMismatch(
                            f"{self.peer} applied other weights than it was sent",
                            sent=self.version,
                            applied=version,
                        )
                    return Delivery(version, True, applied.receive_seconds, applied.apply_seconds)
                case "superseded":
                    return Delivery(version_from_proto(response.superseded.by), False, 0.0, 0.0)
                case other:
                    raise ProtocolViolation(f"{self.peer}: unexpected {other} in a push")

    def cancel(self) -> None:
        """Ends what is still in progress."""
        if self.sender is not None:
            self.sender.cancel()
            # A write that fails with the call is reported by the read that fails with it.
            self.sender.add_done_callback(lambda sender: sender.cancelled() or sender.exception())
        self.call.cancel()

    def _offer(self) -> weights_pb2.WeightOffer:
        return weights_pb2.WeightOffer(
            version=version_to_proto(self.version),
            manifest=manifest_to_proto(self.snapshot.manifest),
            encoding=weights_pb2.WEIGHT_ENCODING_FULL,
            encoded_bytes=self.snapshot.manifest.total_bytes,
        )

    async def _read(self) -> explorer_pb2.PushWeightsResponse:
        try:
            async with asyncio.timeout(self.timeout):
                response = await read(self.call)
        except TimeoutError as error:
            raise WaitTimedOut(
                f"{self.peer} was silent for {self.timeout:g} seconds while version {self.version.step} was pushed"
            ) from error
        if response is None:
            raise ProtocolViolation(f"{self.peer} ended the push of version {self.version.step} without an outcome")
        return response

    async def _send_from(self, offset: int) -> None:
        if self.sender is not None:
            self.sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.sender
        self.sender = asyncio.create_task(self._send(offset))

    async def _send(self, offset: int) -> None:
        for chunk in chunks(self.snapshot.data, offset, self.chunk_bytes):
            await self.call.write(serialize_push_chunk(chunk.offset, chunk.xxh3, chunk.data))
