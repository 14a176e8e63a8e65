"""A trainer that breaks the contract, against a real explorer: what it gets, and that the explorer goes on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio
import torch
import xxhash

from common.errors import CorruptData, ManifestMismatch, ProtocolViolation, RunMismatch, StaleEpoch, TandemError
from common.rpc.channel import open_channel
from common.rpc.errors import from_rpc_error
from common.rpc.stubs import explorer_stub, read
from common.weights.manifest import DTYPES, Manifest, build_manifest, tensor_bytes
from common.wire.manifests import manifest_to_proto
from explorer_service.engine.registry import make_engine
from protos.tandem.v1 import experience_pb2, explorer_pb2, weights_pb2
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import InProcessPair, in_process
from tests.support.scripted_rpc import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN = "hostile"
SECONDS = 60.0
MAX = (1 << 64) - 1
SETTINGS = {
    "run": {"name": RUN},
    "explorer": {"trainer": None, "max_groups_per_batch": 1},
    "sync": {"style": "fully_async", "max_inflight_batches": 4},
}


@dataclass
class Target:
    """An explorer that runs on version 1 of epoch 1 and has batches 1 to 4 in its spool."""

    pair: InProcessPair
    stub: Any
    tensors: dict[str, torch.Tensor]

    async def status(self) -> explorer_pb2.ExplorerServiceGetStatusResponse:
        return await self.pair.explorer_status()

    async def stream(self, *requests: dict[str, Any], **opening: Any) -> tuple[list[Any], TandemError | None]:
        """Opens a stream and sends the requests; what came until it ended, and the error that it ended with."""
        call = self.stub.StreamExperiences(timeout=SECONDS)
        try:
            await call.write(explorer_pb2.StreamExperiencesRequest(open=opened(**opening)))
            for request in requests:
                await call.write(explorer_pb2.StreamExperiencesRequest(**request))
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it ended meanwhile: reading says how
        return await rest_of(call)

    async def push(self, *requests: dict[str, Any]) -> tuple[list[Any], TandemError | None]:
        """The same of a push."""
        call = self.stub.PushWeights(
            iter([explorer_pb2.PushWeightsRequest(**request) for request in requests]), timeout=SECONDS
        )
        return await rest_of(call)


async def rest_of(call: Any) -> tuple[list[Any], TandemError | None]:
    """What is still to be read of a call, and the error that it ends with; gRPC tells it when all has been read."""
    seen: list[Any] = []
    try:
        while (response := await read(call)) is not None:
            seen.append(response)
    except grpc.aio.AioRpcError as error:
        return seen, from_rpc_error(error, "explorer")
    return seen, None


def opened(**fields: Any) -> explorer_pb2.StreamOpen:
    return explorer_pb2.StreamOpen(**{"run_epoch": 1, "run_name": RUN, **fields})


def offer(of: Manifest, step: int, run_epoch: int = 1, **fields: Any) -> dict[str, Any]:
    """An honest offer, but for the fields that are given."""
    version = experience_pb2.PolicyVersion(run_epoch=run_epoch, step=step, manifest_hash=of.manifest_hash)
    honest = {
        "version": version,
        "manifest": manifest_to_proto(of),
        "encoding": weights_pb2.WEIGHT_ENCODING_FULL,
        "encoded_bytes": of.total_bytes,
    }
    return {"offer": weights_pb2.WeightOffer(**{**honest, **fields})}


def data_of(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(tensor_bytes(tensors[name]).numpy().tobytes() for name in sorted(tensors))


def chunks(data: bytes, size: int = 4096) -> list[dict[str, Any]]:
    return [
        {
            "chunk": weights_pb2.WeightChunk(
                offset=start,
                xxh3=xxhash.xxh3_64_intdigest(data[start : start + size]),
                data=data[start : start + size],
            )
        }
        for start in range(0, len(data), size)
    ]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    config = pair_config(tmp_path_factory.mktemp("hostile"), SETTINGS)
    generator = torch.Generator().manual_seed(0)
    engine = make_engine(config)
    tensors = {
        entry.name: torch.randn(entry.shape, generator=generator).to(DTYPES[entry.dtype])
        for entry in engine.layout.tensors
    }
    await engine.close()
    async with in_process(config) as pair, open_channel(config.explorer.address, config.limits) as channel:
        pair.start_explorer()
        waiting = explorer_pb2.EXPLORER_STATE_WAITING_FOR_WEIGHTS
        await pair.until(pair.explorer_status, lambda status: status.state == waiting)
        target = Target(pair, explorer_stub(channel), tensors)
        seen, error = await target.push(offer(build_manifest(tensors), 1), *chunks(data_of(tensors)))
        assert error is None
        assert seen[-1].WhichOneof("message") == "applied"
        call = target.stub.StreamExperiences(timeout=SECONDS)
        await call.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
        await call.write(explorer_pb2.StreamExperiencesRequest(credit=explorer_pb2.Credit(tasks=range(4))))
        await pair.until(
            pair.explorer_status, lambda status: status.batches_spooled == 4 and status.groups_running == 0
        )
        call.cancel()
        yield target


async def unchanged(target: Target, before: explorer_pb2.ExplorerServiceGetStatusResponse) -> None:
    """The explorer is well, and what counts is as it was."""
    after = await target.status()
    for field in ("policy_version", "last_sequence", "frontier", "batches_spooled", "groups_started", "failure"):
        assert getattr(after, field) == getattr(before, field), field


def batches(seen: Sequence[Any]) -> list[int]:
    return [response.batch.sequence for response in seen if response.WhichOneof("message") == "batch"]


@pytest.mark.parametrize(
    ("opening", "kind"),
    [
        ({"run_name": "other"}, RunMismatch),
        ({"run_name": ""}, RunMismatch),
        ({"run_name": "\x1b[31m\x00" * 10_000}, RunMismatch),
        ({"run_epoch": 0}, ProtocolViolation),
        ({"received_through": 5}, RunMismatch),
        ({"received_through": MAX}, RunMismatch),
        ({"received_through": 5, "run_epoch": 1 << 62}, RunMismatch),
        ({"acked_through": 5}, RunMismatch),
        ({"acked_through": MAX, "run_epoch": 1 << 62}, RunMismatch),
        ({"run_epoch": MAX}, ProtocolViolation),
    ],
)
async def test_a_stream_that_opens_wrongly_is_refused_and_changes_nothing(
    target: Target, opening: dict[str, Any], kind: type[TandemError]
) -> None:
    before = await target.status()
    seen, error = await target.stream(**opening)
    assert type(error) is kind
    assert seen == []
    await unchanged(target, before)
    # A run epoch that came with it is not believed: the trainer of epoch 1 is still heard.
    seen, error = await target.stream(received_through=4)
    assert error is None


@pytest.mark.parametrize(
    "request_",
    [
        {"ack": explorer_pb2.Ack(through_sequence=5)},
        {"ack": explorer_pb2.Ack(through_sequence=MAX)},
        {"resend": explorer_pb2.Resend(from_sequence=0)},
        {"resend": explorer_pb2.Resend(from_sequence=MAX)},
        {"resend": explorer_pb2.Resend(from_sequence=6)},
        {"open": opened()},
        {"replacement_task": explorer_pb2.ReplacementTask(failed=0, task=1)},
        {},
    ],
)
async def test_a_message_that_breaks_the_contract_ends_the_stream_with_the_reason(
    target: Target, request_: dict[str, Any]
) -> None:
    before = await target.status()
    seen, error = await target.stream(request_)
    assert type(error) is ProtocolViolation
    await unchanged(target, before)
    seen, error = await target.stream()
    assert error is None
    assert seen[0].hello.last_sequence == 4


async def test_a_resend_comes_again_from_there_and_in_order(target: Target) -> None:
    call = target.stub.StreamExperiences(timeout=SECONDS)
    await call.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
    seen: list[int] = []
    while len(seen) < 4:
        seen += batches([await call.read()])
    for first in (3, 1):
        resend = explorer_pb2.Resend(from_sequence=first, reason="\x1b[31mcorrupt")
        await call.write(explorer_pb2.StreamExperiencesRequest(resend=resend))
        while len(seen) < 4 + (2 if first == 3 else 6):
            seen += batches([await call.read()])
    call.cancel()
    assert seen == [1, 2, 3, 4, 3, 4, 1, 2, 3, 4]


async def test_a_resend_while_batches_are_on_their_way_is_not_lost(target: Target) -> None:
    # Asked for before anything was read: wherever the explorer stands then, batch 1 comes again.
    for _ in range(10):
        call = target.stub.StreamExperiences(timeout=SECONDS)
        await call.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
        seen: list[int] = []
        while not seen:
            seen += batches([await call.read()])
        await call.write(explorer_pb2.StreamExperiencesRequest(resend=explorer_pb2.Resend(from_sequence=1)))
        while 1 not in seen[1:] or seen[-1] != 4:
            seen += batches([await call.read()])
        call.cancel()
        again = seen[1:].index(1) + 1
        assert seen[again:] == [1, 2, 3, 4]


async def test_a_lower_epoch_is_refused_and_an_equal_one_takes_the_place(target: Target) -> None:
    first = target.stub.StreamExperiences(timeout=SECONDS)
    await first.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
    assert (await first.read()).hello.explorer_id == "explorer-0"
    second = target.stub.StreamExperiences(timeout=SECONDS)
    await second.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
    await second.read()
    _, error = await rest_of(first)
    assert type(error) is StaleEpoch
    second.cancel()


async def test_a_flood_of_credit_neither_overruns_nor_blocks(target: Target) -> None:
    before = await target.status()
    # Of a version that will never come: nothing may be started, however much credit there is.
    credit = explorer_pb2.Credit(group_limit=MAX, min_policy_step=MAX, tasks=range(100))
    _, error = await target.stream(*[{"credit": credit}] * 500)
    assert error is None
    await unchanged(target, before)


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"encoding": 0}, ProtocolViolation),
        ({"encoding": 99}, ProtocolViolation),
        ({"encoded_bytes": 1}, ProtocolViolation),
        ({"encoded_bytes": MAX}, ProtocolViolation),
    ],
)
async def test_an_offer_that_lies_is_refused(target: Target, changes: dict[str, Any], kind: type[TandemError]) -> None:
    before = await target.status()
    seen, error = await target.push(offer(build_manifest(target.tensors), 2, **changes))
    assert type(error) is kind
    assert seen == []
    await unchanged(target, before)


async def test_a_manifest_that_lies_is_refused_before_memory_is_taken(target: Target) -> None:
    before = await target.status()
    honest = build_manifest(target.tensors)
    lies = []
    for field, value in (("total_bytes", 1 << 40), ("manifest_hash", "00" * 16), ("layout_hash", "00" * 16)):
        message = manifest_to_proto(honest)
        setattr(message, field, value)
        lies.append(message)
    message = manifest_to_proto(honest)
    message.tensors[0].length = 1 << 50
    lies.append(message)
    message = manifest_to_proto(honest)
    message.tensors[0].shape[:] = [1] * 100_000
    lies.append(message)
    for message in lies:
        _, error = await target.push(offer(honest, 2, run_epoch=1 << 62, manifest=message))
        assert error is not None
        assert error.code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    small = build_manifest({"w": torch.zeros(3)})
    _, error = await target.push(offer(small, 2))
    assert type(error) is ManifestMismatch
    await unchanged(target, before)


async def test_weights_that_are_not_finite_are_never_applied(target: Target) -> None:
    before = await target.status()
    poisoned = {name: tensor.clone() for name, tensor in target.tensors.items()}
    poisoned[min(poisoned)].view(-1)[7] = NAN
    _, error = await target.push(offer(build_manifest(poisoned), 2, run_epoch=1 << 62), *chunks(data_of(poisoned)))
    assert error is not None
    assert error.reason == "NON_FINITE_WEIGHTS"
    await unchanged(target, before)


async def test_bytes_that_are_not_the_manifests_are_never_applied(target: Target) -> None:
    before = await target.status()
    other = {name: tensor + 1 for name, tensor in target.tensors.items()}
    _, error = await target.push(offer(build_manifest(other), 2), *chunks(data_of(target.tensors)))
    assert type(error) is CorruptData
    await unchanged(target, before)


async def test_chunks_out_of_order_or_corrupt_are_asked_for_again_and_then_applied(target: Target) -> None:
    status = await target.status()
    step = status.policy_version.step + 1
    manifest, parts = build_manifest(target.tensors), chunks(data_of(target.tensors))
    seen, error = await target.push(offer(manifest, step), parts[1], *parts)
    assert error is None
    assert [response.WhichOneof("message") for response in seen][:2] == ["accept", "resend"]
    assert seen[1].resend.offset == 0
    assert seen[-1].applied.version.step == step
    broken = weights_pb2.WeightChunk()
    broken.CopyFrom(parts[0]["chunk"])
    broken.xxh3 ^= 1
    seen, error = await target.push(offer(manifest, step + 1), {"chunk": broken}, *parts)
    assert error is None
    assert "resend" in [response.WhichOneof("message") for response in seen]
    assert seen[-1].applied.version.step == step + 1
    assert (await target.status()).policy_version.manifest_hash == manifest.manifest_hash


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [{}],
        [{"chunk": weights_pb2.WeightChunk(data=b"x")}],
    ],
)
async def test_a_push_that_does_not_start_with_an_offer_is_refused(
    target: Target, requests: list[dict[str, Any]]
) -> None:
    _, error = await target.push(*requests)
    assert type(error) is ProtocolViolation


async def test_a_push_that_ends_early_or_offers_twice_changes_nothing(target: Target) -> None:
    before = await target.status()
    step = before.policy_version.step + 1
    manifest, parts = build_manifest(target.tensors), chunks(data_of(target.tensors))
    far = {"chunk": weights_pb2.WeightChunk(offset=MAX, data=b"x", xxh3=xxhash.xxh3_64_intdigest(b"x"))}
    empty = {"chunk": weights_pb2.WeightChunk()}
    for wrong in (parts[:2], [offer(manifest, step)], [far], [empty]):
        _, error = await target.push(offer(manifest, step), *wrong)
        assert type(error) is ProtocolViolation
    await unchanged(target, before)


async def test_stale_versions_and_epochs_are_refused(target: Target) -> None:
    before = await target.status()
    manifest = build_manifest(target.tensors)
    for version, reason in (
        ({"step": 0}, "STALE_VERSION"),
        ({"step": 9, "run_epoch": 0}, "PROTOCOL_VIOLATION"),
        ({"step": MAX}, "MALFORMED_DATA"),
        ({"step": 9, "run_epoch": MAX}, "MALFORMED_DATA"),
    ):
        _, error = await target.push(offer(manifest, **version))
        assert error is not None
        assert error.reason == reason
    await unchanged(target, before)


async def test_two_hundred_cancelled_streams_leave_no_task_and_no_session(target: Target) -> None:
    seen, error = await target.stream()
    assert error is None
    # The server runs in this loop: its tasks are counted, too.
    before = len(asyncio.all_tasks())
    for _ in range(10):
        calls = [target.stub.StreamExperiences() for _ in range(20)]
        for call in calls:
            await call.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
        for call in calls:
            call.cancel()
    await until(lambda: len(asyncio.all_tasks()) <= before)
    seen, error = await target.stream()
    assert error is None
    assert batches(seen) == [1, 2, 3, 4]


async def test_a_successor_fences_its_predecessor_off(target: Target) -> None:
    """The last test: the explorer knows epoch 3 from here on."""
    first = target.stub.StreamExperiences(timeout=SECONDS)
    await first.write(explorer_pb2.StreamExperiencesRequest(open=opened()))
    await first.read()
    _, error = await target.stream(run_epoch=3)
    assert error is None
    _, error = await rest_of(first)
    assert type(error) is StaleEpoch
    _, error = await target.stream(run_epoch=2)
    assert type(error) is StaleEpoch
    assert error.metadata == {"epoch": "2", "newest": "3"}
    _, error = await target.push(offer(build_manifest(target.tensors), 100, run_epoch=2))
    assert type(error) is StaleEpoch
    _, error = await target.stream(run_epoch=3, run_name="other")
    assert type(error) is RunMismatch
