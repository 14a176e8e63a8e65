"""Pushes over a real socket: publisher and servicer, with chunks of 4 KiB."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import torch

from common.errors import CorruptData, PeerUnavailable
from common.weights.collector import ChunkCollector
from common.weights.delta import encode
from common.weights.encoding import Encoding
from tests.support.push_pair import PushPair, push_pair, snapshot_of
from trainer_service.publish import push_stream
from trainer_service.publish.choice import LinkRate
from trainer_service.publish.shards import ShardPublisher

Weights = dict[str, torch.Tensor]
SLOW = 1e5
"""Bytes a second: the compressed delta pays."""
FAST = 1e6
"""The plain delta pays: its compression would take longer than it saves."""


def first_weights() -> Weights:
    generator = torch.Generator().manual_seed(1)
    return {
        "embedding": torch.randn(300, 100, generator=generator).bfloat16(),
        "norm": torch.ones(101),
        "out": torch.randn(100, 300, generator=generator).bfloat16(),
    }


def trained(weights: Weights, every: int = 50) -> Weights:
    """Every so many'th element of the embedding and of the output moves by one unit in the last place."""
    after = {name: tensor.clone() for name, tensor in weights.items()}
    for name in ("embedding", "out"):
        after[name].view(-1).view(torch.int16)[::every] += 1
    return after


def same(pair: PushPair, weights: Weights) -> bool:
    return pair.explorer.live == snapshot_of(weights).manifest


def encodings(logs: list[dict[str, object]]) -> list[object]:
    return [entry["encoding"] for entry in logs if entry["event"] == "push_encoding"]


def fix_choice(monkeypatch: pytest.MonkeyPatch, encoding: Encoding) -> None:
    """The model's expectation: `encoding` takes no time."""
    monkeypatch.setattr(
        "trainer_service.publish.choice.expected_seconds",
        lambda *args, **kwargs: {other: float(other is not encoding) for other in Encoding},
    )


def damage_chunks(monkeypatch: pytest.MonkeyPatch, harm: Callable[[int, bytes], bytes]) -> list[int]:
    """Passes each sent chunk through `harm(number, wire bytes)`; returns the list of the offsets sent."""
    genuine = push_stream.serialize_push_chunk
    offsets: list[int] = []

    def serialize(offset: int, xxh3: int, data: memoryview) -> bytes:
        offsets.append(offset)
        return harm(len(offsets), genuine(offset, xxh3, data))

    monkeypatch.setattr(push_stream, "serialize_push_chunk", serialize)
    return offsets


def flipped(wire: bytes) -> bytes:
    return wire[:-1] + bytes([wire[-1] ^ 1])


@pytest.mark.parametrize("encoding", [Encoding.DELTA, Encoding.DELTA_ZSTD])
async def test_a_first_push_is_full_and_later_ones_are_deltas_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    fix_choice(monkeypatch, encoding)
    weights = first_weights()
    async with push_pair(tmp_path, weights) as pair:
        with structlog.testing.capture_logs() as logs:
            for step in range(1, 5):
                weights = trained(weights)
                delivery = await pair.push(step, weights)
                assert delivery.applied
                assert same(pair, weights)
        assert encodings(logs) == ["full", *[encoding.value] * 3]
        assert all(entry["reason"] for entry in logs if entry["event"] == "push_encoding")
        sizes = [entry["bytes"] for entry in logs if entry["event"] == "push_encoding"]
        assert sizes[0] == snapshot_of(weights).manifest.total_bytes
        assert max(sizes[1:]) < sizes[0] / 20


async def test_with_deltas_off_every_push_is_full(tmp_path: Path) -> None:
    weights = first_weights()
    async with push_pair(tmp_path, weights, delta="off") as pair:
        with structlog.testing.capture_logs() as logs:
            for step in range(1, 3):
                await pair.push(step, weights := trained(weights))
        assert encodings(logs) == ["full", "full"]
        assert same(pair, weights)


async def test_no_memory_for_history_means_full_pushes(tmp_path: Path) -> None:
    weights = first_weights()
    async with push_pair(tmp_path, weights, delta_history_bytes=1000) as pair:
        with structlog.testing.capture_logs() as logs:
            for step in range(1, 3):
                await pair.push(step, weights := trained(weights))
        assert encodings(logs) == ["full", "full"]


async def test_an_explorer_that_lost_the_base_gets_the_full_version_on_the_same_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_choice(monkeypatch, Encoding.DELTA)
    weights = first_weights()
    async with push_pair(tmp_path, weights) as pair:
        await pair.push(1, weights)
        # As a restart does.
        pair.explorer.weights.receiver._pool.take(10)
        with structlog.testing.capture_logs() as logs:
            await pair.push(2, weights := trained(weights))
        assert same(pair, weights)
        assert [entry["event"] for entry in logs].count("delta_refused") == 1

        with structlog.testing.capture_logs() as logs:
            await pair.push(3, weights := trained(weights))
        assert same(pair, weights)
        assert encodings(logs) == ["delta"]
        assert "delta_refused" not in [entry["event"] for entry in logs]


@pytest.mark.parametrize("encoding", [Encoding.DELTA, Encoding.DELTA_ZSTD])
async def test_a_delta_that_does_not_make_the_promised_version_is_followed_by_the_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    fix_choice(monkeypatch, encoding)
    weights = first_weights()

    def wrong(base: object, new: object, manifest: object) -> object:
        encoded = encode(base, new, manifest)  # type: ignore[arg-type]
        assert encoded is not None
        encoded[-1] ^= 1
        return encoded

    async with push_pair(tmp_path, weights) as pair:
        await pair.push(1, weights)
        monkeypatch.setattr("trainer_service.publish.history.encode", wrong)
        with structlog.testing.capture_logs() as logs:
            await pair.push(2, weights := trained(weights))
        assert same(pair, weights)
        reasons = [str(entry["reason"]) for entry in logs if entry["event"] == "delta_refused"]
        assert len(reasons) == 1
        assert "'out'" in reasons[0]


@pytest.mark.parametrize("encoding", [Encoding.FULL, Encoding.DELTA])
async def test_a_push_that_is_cut_goes_on_behind_the_last_verified_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    fix_choice(monkeypatch, encoding)
    weights = first_weights()
    async with push_pair(tmp_path, weights) as pair:
        await pair.push(1, weights)
        # So dense that the delta has several chunks.
        weights = trained(weights, every=6)
        offsets = damage_chunks(monkeypatch, lambda _number, wire: wire)
        genuine = ChunkCollector.write

        def cut_after_two(collector: ChunkCollector, offset: int, xxh3: int, data: memoryview) -> bool:
            if collector.received == 8192:
                raise PeerUnavailable("the line was cut")
            return genuine(collector, offset, xxh3, data)

        with monkeypatch.context() as cut:
            cut.setattr(ChunkCollector, "write", cut_after_two)
            with pytest.raises(PeerUnavailable):
                await pair.push(2, weights)
        # Two chunks of 4096 bytes were verified.
        assert pair.explorer.weights.receiver.received == 8192
        offsets.clear()
        await pair.push(2, weights)
        assert same(pair, weights)
        assert offsets[0] == 8192


@pytest.mark.parametrize("encoding", [Encoding.FULL, Encoding.DELTA])
async def test_a_corrupt_chunk_is_sent_again_on_the_same_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    fix_choice(monkeypatch, encoding)
    weights = first_weights()
    async with push_pair(tmp_path, weights) as pair:
        await pair.push(1, weights)
        weights = trained(weights, every=6)
        offsets: list[int] = []

        def harm(_number: int, wire: bytes) -> bytes:
            first_time = offsets.count(offsets[-1]) == 1
            return flipped(wire) if first_time and offsets[-1] in {4096, 20480} else wire

        offsets = damage_chunks(monkeypatch, harm)

        delivery = await pair.push(2, weights)

        assert delivery.applied
        assert same(pair, weights)
        assert offsets.count(4096) == 2


async def test_a_version_of_the_history_is_a_base_while_an_explorer_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_choice(monkeypatch, Encoding.DELTA)
    weights = first_weights()
    async with push_pair(tmp_path, weights) as pair:
        await pair.push(1, weights)
        # Published, and delivered to nobody.
        for step in (2, 3, 4):
            await pair.publisher.prepare(step, snapshot_of(weights := trained(weights)))
        with structlog.testing.capture_logs() as logs:
            await pair.push(5, weights := trained(weights))
        assert encodings(logs) == ["delta"]
        assert same(pair, weights)


async def test_a_staged_version_that_waits_for_its_swap_is_not_overwritten_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_choice(monkeypatch, Encoding.DELTA)
    weights = first_weights()
    async with push_pair(tmp_path, weights) as pair:
        await pair.push(1, weights)
        pair.explorer.hold = True
        second, third = trained(weights), trained(trained(weights, every=7))
        arrived = [asyncio.Event(), asyncio.Event()]
        waiting = asyncio.create_task(pair.push(2, second, arrived[0].set))
        await asyncio.wait_for(arrived[0].wait(), 10)
        held = pair.explorer.weights._staged
        assert held is not None

        newer = asyncio.create_task(pair.push(3, third, arrived[1].set))
        await asyncio.wait_for(arrived[1].wait(), 10)

        assert all(torch.equal(held.tensors[name], second[name]) for name in second)
        await pair.explorer.swap(1, 3)
        assert (await newer).applied
        assert not (await waiting).applied
        assert same(pair, third)


async def test_a_delta_is_encoded_once_for_all_explorers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_choice(monkeypatch, Encoding.DELTA)
    weights = first_weights()
    made = []

    def counted(*args: object) -> object:
        made.append(1)
        return encode(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("trainer_service.publish.history.encode", counted)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with push_pair(tmp_path / "one", weights) as one, push_pair(tmp_path / "two", weights) as two:
        publisher: ShardPublisher = one.publisher
        for step in (1, 2):
            published = await publisher.prepare(step, snapshot_of(weights := trained(weights)))
            await asyncio.gather(
                publisher.deliver(one.channel, "one", published, lambda: None),
                publisher.deliver(two.channel, "two", published, lambda: None),
            )
        assert same(one, weights)
        assert same(two, weights)
        assert len(made) == 1


async def test_weights_that_are_not_what_their_manifest_says_are_never_live(tmp_path: Path) -> None:
    weights = first_weights()
    async with push_pair(tmp_path, weights, delta="off") as pair:
        await pair.push(1, weights)
        lying = await pair.publisher.prepare(2, snapshot_of(trained(weights)))
        assert lying.snapshot is not None
        lying.snapshot.data[-1] ^= 1
        with pytest.raises(CorruptData, match="'out'"):
            await pair.publisher.deliver(pair.channel, "explorer", lying, lambda: None)
        assert same(pair, weights)


def test_a_link_learns_its_rate_from_transfers_and_not_from_the_receivers_work() -> None:
    rate = LinkRate()
    rate.observe(100_000_000, 1.0, 0.0)
    assert rate.bytes_per_second == pytest.approx(1e8)
    # 0.9 of 1.0 seconds were the receiver's: only a lower bound.
    rate.observe(1_000_000, 1.0, 0.9)
    assert rate.bytes_per_second == pytest.approx(1e8)
    rate.observe(10_000_000, 1.2, 0.2)
    assert rate.bytes_per_second == pytest.approx((1e8 + 1e7) / 2)
    # Too small to tell.
    rate.observe(1000, 1.0, 0.0)
    assert rate.bytes_per_second == pytest.approx((1e8 + 1e7) / 2)
