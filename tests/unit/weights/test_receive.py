import pytest
import torch

from common.errors import LimitExceeded, MalformedData, ManifestMismatch, ProtocolViolation
from common.weights.manifest import Manifest
from common.weights.receive import StagedWeights, WeightReceiver
from common.weights.shards import chunks
from tests.support.weights import lay_out, same_bits, sample_tensors


def make_receiver(**settings: object) -> WeightReceiver:
    return WeightReceiver(**{"max_tensors": 100, "max_bytes": 1 << 20, **settings})


def push(receiver: WeightReceiver, data: torch.Tensor, start: int, stop: int, chunk_bytes: int = 16) -> None:
    for chunk in chunks(data[:stop], start, chunk_bytes):
        receiver.write(chunk.offset, chunk.xxh3, chunk.data)


def other_version() -> tuple[Manifest, torch.Tensor, dict[str, torch.Tensor]]:
    tensors = {**sample_tensors(), "c.weight": torch.full((5, 11), 2.5)}
    return *lay_out(tensors), tensors


def test_a_push_that_is_cut_at_any_chunk_boundary_goes_on_from_there() -> None:
    tensors = sample_tensors()
    manifest, data = lay_out(tensors)
    boundaries = range(0, manifest.total_bytes, 16)
    assert len(boundaries) > 10

    for cut in boundaries:
        receiver = make_receiver()
        assert receiver.offer(1, 4, manifest) == 0
        push(receiver, data, 0, cut)

        assert receiver.offer(1, 4, manifest) == cut
        push(receiver, data, cut, manifest.total_bytes)
        staged = receiver.finish()
        assert all(same_bits(staged.tensors[name], tensors[name]) for name in tensors)


def test_a_push_that_is_cut_at_every_chunk_boundary_arrives() -> None:
    tensors = sample_tensors()
    manifest, data = lay_out(tensors)
    receiver = make_receiver()

    while (start := receiver.offer(1, 4, manifest)) < manifest.total_bytes:
        push(receiver, data, start, min(start + 16, manifest.total_bytes))

    assert all(same_bits(tensor, tensors[name]) for name, tensor in receiver.finish().tensors.items())


def test_a_cut_after_a_lost_chunk_awaits_no_resend_any_more() -> None:
    manifest, data = lay_out(sample_tensors())
    receiver = make_receiver()
    receiver.offer(1, 4, manifest)
    pieces = list(chunks(data, 0, 16))
    with pytest.raises(Exception, match="gap"):
        receiver.write(pieces[1].offset, pieces[1].xxh3, pieces[1].data)

    assert receiver.offer(1, 4, manifest) == 0
    with pytest.raises(Exception, match="gap"):
        receiver.write(pieces[1].offset, pieces[1].xxh3, pieces[1].data)


@pytest.mark.parametrize(("epoch", "step"), [(1, 5), (2, 4)])
def test_another_version_replaces_a_partly_received_one(epoch: int, step: int) -> None:
    manifest, data = lay_out(sample_tensors())
    newer, newer_data, newer_tensors = other_version()
    receiver = make_receiver()
    receiver.offer(1, 4, manifest)
    push(receiver, data, 0, 64)
    stale = receiver.assembly

    assert receiver.offer(epoch, step, newer) == 0
    piece = next(chunks(data, 64, 16))
    with pytest.raises(ProtocolViolation, match="replaced"):
        stale.write(piece.offset, piece.xxh3, piece.data)

    push(receiver, newer_data, 0, newer.total_bytes)
    staged = receiver.finish()
    assert staged.manifest == newer
    assert all(same_bits(staged.tensors[name], newer_tensors[name]) for name in newer_tensors)


def test_other_weights_under_the_same_number_do_not_mix() -> None:
    manifest, data = lay_out(sample_tensors())
    other, _, _ = other_version()
    receiver = make_receiver()
    receiver.offer(1, 4, manifest)
    push(receiver, data, 0, 64)

    assert receiver.offer(1, 4, other) == 0


def test_a_refused_offer_leaves_the_version_on_its_way_alone() -> None:
    manifest, data = lay_out(sample_tensors())
    receiver = make_receiver(layout_hash=manifest.layout_hash)
    receiver.offer(1, 4, manifest)
    push(receiver, data, 0, 64)
    alien, _ = lay_out({"x": torch.zeros(3)})
    liar = Manifest(manifest.tensors, manifest.total_bytes, "0" * 32, manifest.layout_hash)

    with pytest.raises(ManifestMismatch) as caught:
        receiver.offer(1, 5, alien)
    assert caught.value.metadata == {"expected": manifest.layout_hash, "offered": alien.layout_hash}
    with pytest.raises(MalformedData):
        receiver.offer(1, 5, liar)
    with pytest.raises(ProtocolViolation):
        receiver.offer(1, 5, manifest, encoded_bytes=3)
    assert receiver.received == 64


def test_limits_hold_before_memory_is_taken() -> None:
    manifest, _ = lay_out(sample_tensors())

    with pytest.raises(LimitExceeded, match="weights_bytes"):
        make_receiver(max_bytes=manifest.total_bytes - 1).offer(1, 1, manifest)
    with pytest.raises(LimitExceeded, match="manifest_tensors"):
        make_receiver(max_tensors=6).offer(1, 1, manifest)


def test_chunks_without_an_offer_are_refused() -> None:
    receiver = make_receiver()
    with pytest.raises(ProtocolViolation, match="no version"):
        receiver.write(0, 0, b"x")

    manifest, _ = lay_out(sample_tensors())
    receiver.offer(1, 1, manifest)
    receiver.drop()
    with pytest.raises(ProtocolViolation, match="no version"):
        receiver.finish()


def test_staged_weights_survive_the_next_version_and_then_lend_it_their_memory() -> None:
    manifest, data = lay_out(sample_tensors())
    newer, newer_data, _ = other_version()
    receiver = make_receiver()

    def receive(step: int, which: Manifest, raw: torch.Tensor) -> StagedWeights:
        receiver.offer(1, step, which)
        push(receiver, raw, 0, which.total_bytes)
        return receiver.finish()

    first = receive(1, manifest, data)
    second = receive(2, newer, newer_data)
    assert same_bits(first.tensors["d.half"], sample_tensors()["d.half"])
    assert same_bits(second.tensors["c.weight"], torch.full((5, 11), 2.5))

    where = second.tensors["b.bytes"].data_ptr()
    del second
    assert receive(3, newer, newer_data).tensors["b.bytes"].data_ptr() == where
