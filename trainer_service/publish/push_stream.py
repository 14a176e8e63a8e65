"""One call of PushWeights, the sender's side: sends chunks while it listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
import structlog
import torch
from google.protobuf.message import Message

from common.errors import ManifestMismatch, ProtocolViolation, WaitTimedOut
from common.rpc.stubs import read
from common.weights.encoding import Encoding
from common.weights.manifest import Manifest
from common.weights.shards import chunks
from common.weights.version import PolicyVersion
from common.wire.bulk import serialize_push_chunk
from common.wire.encodings import encoding_to_proto
from common.wire.manifests import manifest_to_proto
from common.wire.versions import version_from_proto, version_to_proto
from protos.tandem.v1 import explorer_pb2, weights_pb2
from trainer_service.publish.publication import Delivery

log = structlog.get_logger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedVersion:
    """The bytes of one push."""

    version: PolicyVersion
    manifest: Manifest
    encoding: Encoding
    data: torch.Tensor
    """uint8 `[n]`, contiguous, on the CPU."""
    base: PolicyVersion | None = None
    """Of a delta."""

    def offer(self) -> weights_pb2.WeightOffer:
        """What announces it."""
        return weights_pb2.WeightOffer(
            version=version_to_proto(self.version),
            manifest=manifest_to_proto(self.manifest),
            encoding=encoding_to_proto(self.encoding),
            encoded_bytes=self.data.numel(),
            base=version_to_proto(self.base) if self.base is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a push took, up to the verified version at the explorer."""

    encoding: Encoding
    """The one that it arrived by."""
    sent_bytes: int
    """From where the explorer wanted them on; resent ones not counted again."""
    seconds: float


@dataclass(slots=True, eq=False)
class PushStream:
    """Offers a version, and brings it to where it is applied."""

    call: grpc.aio.StreamStreamCall[Message | bytes, explorer_pb2.PushWeightsResponse]
    peer: str
    encoded: EncodedVersion
    in_full: Callable[[], EncodedVersion]
    """The same version in full, for when the explorer cannot use the delta."""
    chunk_bytes: int
    timeout: float
    transfer: Transfer | None = field(default=None, init=False)
    """Once the version is verified there, if this stream brought it."""
    refused: str | None = field(default=None, init=False)
    """Why the explorer could not use the delta."""
    _goto: int | None = field(default=None, init=False)
    _accepted: tuple[float, int] | None = field(default=None, init=False)
    _sender: asyncio.Task[None] | None = field(default=None, init=False)

    async def run(self, staged: Callable[[], None]) -> Delivery:
        """Returns how it ended; calls `staged`, as often as the explorer says so."""
        await self._within(self.call.write(explorer_pb2.PushWeightsRequest(offer=self.encoded.offer())))
        while True:
            response = await self._read()
            match response.WhichOneof("message"):
                case "accept":
                    self._accepted = (time.monotonic(), response.accept.resume_at)
                    self._send_from(response.accept.resume_at)
                case "resend":
                    self._send_from(response.resend.offset)
                case "need_full" if self.encoded.encoding is not Encoding.FULL:
                    await self._offer_in_full(response.need_full.reason)
                case "staged":
                    self._measure()
                    staged()
                case "applied":
                    return self._delivered(response.applied)
                case "superseded":
                    return Delivery(version_from_proto(response.superseded.by), False, 0.0, 0.0)
                case other:
                    raise ProtocolViolation(f"{self.peer}: unexpected {other} in a push")

    def cancel(self) -> None:
        """Ends what is still in progress."""
        if self._sender is not None:
            self._sender.cancel()
            # A write that fails with the call is reported by the read that fails with it.
            self._sender.add_done_callback(lambda sender: sender.cancelled() or sender.exception())
        self.call.cancel()

    async def _offer_in_full(self, reason: str) -> None:
        log.info("delta_refused", peer=self.peer, step=self.encoded.version.step, reason=reason)
        self.refused = reason
        if self._sender is not None:
            await self._within(self._sender)
        self.encoded = self.in_full()
        await self._within(self.call.write(explorer_pb2.PushWeightsRequest(offer=self.encoded.offer())))

    def _measure(self) -> None:
        if self._accepted is not None and self.transfer is None:
            began, resume_at = self._accepted
            sent = self.encoded.data.numel() - resume_at
            self.transfer = Transfer(self.encoded.encoding, sent, time.monotonic() - began)

    def _delivered(self, applied: weights_pb2.WeightApplied) -> Delivery:
        # It may have been applied before the explorer got to say that it is staged.
        self._measure()
        version = version_from_proto(applied.version)
        if version != self.encoded.version:
            raise ManifestMismatch(
                f"{self.peer} applied other weights than it was sent", sent=self.encoded.version, applied=version
            )
        sent = self.transfer.sent_bytes if self.transfer is not None else 0
        return Delivery(version, True, applied.receive_seconds, applied.apply_seconds, sent)

    async def _read(self) -> explorer_pb2.PushWeightsResponse:
        reading = read(self.call)
        response = await self._within(reading)
        if response is None:
            raise ProtocolViolation(
                f"{self.peer} ended the push of version {self.encoded.version.step} without an outcome"
            )
        return response

    async def _within(self, what: Awaitable[Value]) -> Value:
        """Bounds every wait for the explorer."""
        try:
            async with asyncio.timeout(self.timeout):
                return await what
        except TimeoutError as error:
            raise WaitTimedOut(
                f"{self.peer} was silent for {self.timeout:g} seconds while version {self.encoded.version.step} was pushed"
            ) from error

    def _send_from(self, offset: int) -> None:
        if not 0 <= offset <= self.encoded.data.numel():
            raise ProtocolViolation(f"{self.peer} wants byte {offset} of {self.encoded.data.numel()}")
        self._goto = offset
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        # A resend turns the sender round; cancelling it in the middle of a write would cancel the call.
        while self._goto is not None:
            offset, self._goto = self._goto, None
            for chunk in chunks(self.encoded.data, offset, self.chunk_bytes):
                await self.call.write(serialize_push_chunk(chunk.offset, chunk.xxh3, chunk.data))
                if self._goto is not None:
                    break
