"""The receiving half of a push: offer, chunks, and the way back to the full version when a delta is of no use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import structlog

from common.config.root import LimitsConfig
from common.errors import CorruptData, DeltaUnusable, ProtocolViolation
from common.weights.collector import ChunkCollector
from common.weights.encoding import Encoding
from common.weights.manifest import Manifest
from common.weights.version import PolicyVersion
from common.wire.bulk import ChunkView
from common.wire.encodings import encoding_from_proto
from common.wire.manifests import manifest_from_proto
from common.wire.versions import version_from_proto
from explorer_service.weight_intake import WeightIntake
from protos.tandem.v1 import explorer_pb2, weights_pb2

AT_ONCE_BYTES = 4 << 20
"""Of chunks that the event loop itself puts in place, 0.15 ms a MiB: another thread would have to fetch them from this
one's cache, and both would wait for each other."""

log = structlog.get_logger(__name__)

PushMessage = explorer_pb2.PushWeightsRequest | ChunkView
PushRequests = AsyncIterator[PushMessage]
Next = Callable[[str], Awaitable[PushMessage | None]]
"""The stream's next message, None at its end; the argument says what is waited for."""


def offer_of(message: PushMessage | None) -> weights_pb2.WeightOffer:
    """The offer that a push starts with. Raises ProtocolViolation for every other message."""
    if not isinstance(message, explorer_pb2.PushWeightsRequest) or message.WhichOneof("message") != "offer":
        raise ProtocolViolation("a push starts with `offer`")
    return message.offer


class PushReception:
    """One version on its way in, on one stream; of an offer that was admitted."""

    def __init__(self, version: PolicyVersion, following: Next, weights: WeightIntake, limits: LimitsConfig) -> None:
        self._version = version
        self._next = following
        self._weights = weights
        self._limits = limits

    async def run(self, offer: weights_pb2.WeightOffer) -> AsyncGenerator[explorer_pb2.PushWeightsResponse, None]:
        """Yields what the sender must know; the version is staged when it ends."""
        while True:
            try:
                began = time.monotonic()
                manifest = await asyncio.to_thread(manifest_from_proto, offer.manifest, self._limits)
                resume_at = self._open(offer, manifest)
                # Taken in the same turn of the event loop as it was offered: another stream may replace it.
                assembly = self._weights.receiver.assembly
                yield explorer_pb2.PushWeightsResponse(accept=weights_pb2.WeightAccept(resume_at=resume_at))
                async with aclosing(self._collect(assembly)) as resends:
                    async for resend in resends:
                        yield explorer_pb2.PushWeightsResponse(resend=resend)
                await self._weights.stage_received(self._version, began)
            except DeltaUnusable as error:
                log.info("delta_unusable", step=self._version.step, reason=error.message)
                yield explorer_pb2.PushWeightsResponse(need_full=weights_pb2.WeightNeedFull(reason=error.message))
                offer = offer_of(await self._next("the offer of the full version"))
                if offer.encoding != weights_pb2.WEIGHT_ENCODING_FULL:
                    raise ProtocolViolation("after `need_full` a version is offered in full") from error
            else:
                return

    async def _collect(self, assembly: ChunkCollector) -> AsyncGenerator[weights_pb2.WeightResend, None]:
        """Puts chunks in their places until all bytes are there."""
        while not assembly.complete:
            chunk = await self._next("the next chunk of a push")
            if not isinstance(chunk, ChunkView):
                raise ProtocolViolation(f"the push ended at byte {assembly.received}, or sent no chunk")
            try:
                if len(chunk.data) <= AT_ONCE_BYTES:
                    assembly.write(chunk.offset, chunk.xxh3, chunk.data)
                else:
                    await asyncio.to_thread(assembly.write, chunk.offset, chunk.xxh3, chunk.data)
            except CorruptData as error:
                yield weights_pb2.WeightResend(offset=assembly.received, reason=error.message)

    def _open(self, offer: weights_pb2.WeightOffer, manifest: Manifest) -> int:
        encoding = encoding_from_proto(offer.encoding)
        if version_from_proto(offer.version) != self._version:
            raise ProtocolViolation("another version is offered than before `need_full`")
        if manifest.manifest_hash != self._version.manifest_hash:
            raise ProtocolViolation("the version's hash is not that of its manifest")
        if offer.HasField("base") != (encoding is not Encoding.FULL):
            raise ProtocolViolation("a delta names its base, and nothing else does")
        return self._weights.receiver.offer(
            self._version.run_epoch,
            self._version.step,
            manifest,
            offer.encoded_bytes,
            encoding=encoding,
            base_hash=version_from_proto(offer.base).manifest_hash,
        )
