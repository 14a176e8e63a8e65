"""Pushes by hand, on the wire: fenced by epoch, resumed where they were cut, answered at once when there is nothing to do."""

from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import xxhash
from google.rpc import error_details_pb2, status_pb2

from common.rpc.channel import open_channel
from common.rpc.stubs import explorer_stub
from common.weights.manifest import DTYPES, build_manifest, tensor_bytes
from common.wire.manifests import manifest_to_proto
from explorer_service.engine.registry import make_engine
from protos.tandem.v1 import experience_pb2, explorer_pb2, weights_pb2
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import SECONDS, in_process

CHUNK = 4096
Request = explorer_pb2.PushWeightsRequest


def chunk(data: bytes, offset: int) -> Request:
    piece = data[offset : offset + CHUNK]
    return Request(chunk=weights_pb2.WeightChunk(offset=offset, xxh3=xxhash.xxh3_64_intdigest(piece), data=piece))


async def test_a_push_is_fenced_resumed_and_answered_at_once(tmp_path: Path) -> None:
    config = pair_config(tmp_path)
    engine = make_engine(config)
    layout = engine.layout
    await engine.close()
    tensors = {entry.name: torch.full(entry.shape, 0.5).to(DTYPES[entry.dtype]) for entry in layout.tensors}
    manifest = build_manifest(tensors)
    data = b"".join(tensor_bytes(tensors[entry.name]).numpy().tobytes() for entry in manifest.tensors)

    def offer(epoch: int, step: int) -> Request:
        return Request(
            offer=weights_pb2.WeightOffer(
                version=experience_pb2.PolicyVersion(run_epoch=epoch, step=step, manifest_hash=manifest.manifest_hash),
                manifest=manifest_to_proto(manifest),
                encoding=weights_pb2.WEIGHT_ENCODING_FULL,
                encoded_bytes=len(data),
            )
        )

    async with in_process(config) as pair, open_channel(config.explorer.address, config.limits) as channel:
        pair.start_explorer()
        await pair.until(pair.explorer_status, lambda status: status.reason == "the first weights from the trainer")
        stub: Any = explorer_stub(channel)

        cut = stub.PushWeights(timeout=SECONDS)
        await cut.write(offer(2, 7))
        assert (await cut.read()).accept.resume_at == 0
        for offset in (0, CHUNK):
            await cut.write(chunk(data, offset))
        corrupt = chunk(data, 2 * CHUNK)
        corrupt.chunk.xxh3 ^= 1
        await cut.write(corrupt)
        assert (await cut.read()).resend.offset == 2 * CHUNK  # so the two before it are verified
        cut.cancel()

        again = stub.PushWeights(timeout=SECONDS)
        await again.write(offer(2, 7))
        assert (await again.read()).accept.resume_at == 2 * CHUNK
        for offset in range(2 * CHUNK, len(data), CHUNK):
            await again.write(chunk(data, offset))
        while (response := await again.read()).WhichOneof("message") == "staged":
            pass
        assert response.applied.version.manifest_hash == manifest.manifest_hash
        status = await pair.explorer_status()
        assert (status.policy_version.run_epoch, status.policy_version.step) == (2, 7)

        same = stub.PushWeights(iter([offer(2, 7)]), timeout=SECONDS)
        assert (await same.read()).applied.version.step == 7
        assert await same.read() is grpc.aio.EOF

        for epoch, step, reason in ((1, 9, "STALE_EPOCH"), (2, 6, "STALE_VERSION")):
            refused = stub.PushWeights(iter([offer(epoch, step)]), timeout=SECONDS)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await refused.read()
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
            info = error_details_pb2.ErrorInfo()
            assert status_pb2.Status.FromString(bytes(details)).details[0].Unpack(info)
            assert (info.reason, info.domain) == (reason, "tandem.v1")
        assert (await pair.explorer_status()).policy_version == status.policy_version
