import pytest
import torch
import xxhash

from common.errors import CorruptData, ProtocolViolation
from common.weights.manifest import Manifest, TensorEntry, content_hash, layout_hash
from common.weights.receive import WeightAssembly
from common.weights.shards import Chunk, chunks
from tests.support.weights import lay_out, same_bits, sample_tensors


def opened(chunk_bytes: int = 16) -> tuple[WeightAssembly, list[Chunk], dict[str, torch.Tensor]]:
    tensors = sample_tensors()
    manifest, data = lay_out(tensors)
    return WeightAssembly(manifest, manifest.total_bytes), list(chunks(data, 0, chunk_bytes)), tensors


def put(assembly: WeightAssembly, chunk: Chunk) -> bool:
    return assembly.write(chunk.offset, chunk.xxh3, chunk.data)


def flipped(chunk: Chunk, bit: int = 3) -> bytes:
    raw = bytearray(chunk.data)
    raw[bit // 8] ^= 1 << bit % 8
    return bytes(raw)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 16, 100, 1 << 20])
def test_a_version_arrives_bit_by_bit(chunk_bytes: int) -> None:
    assembly, cut, tensors = opened(chunk_bytes)

    for chunk in cut:
        assert put(assembly, chunk)
    staged = assembly.finish()

    assert list(staged.tensors) == list(tensors)
    assert all(same_bits(staged.tensors[name], tensors[name]) for name in tensors)


def test_a_corrupt_chunk_is_never_applied() -> None:
    assembly, cut, tensors = opened()
    put(assembly, cut[0])

    for bit in range(8 * len(cut[1].data)):
        with pytest.raises(CorruptData, match="byte 16"):
            assembly.write(cut[1].offset, cut[1].xxh3, flipped(cut[1], bit))
        assert assembly.received == 16

    for chunk in cut[1:]:
        put(assembly, chunk)
    assert same_bits(assembly.finish().tensors["c.weight"], tensors["c.weight"])


def test_what_was_in_flight_behind_a_corrupt_chunk_is_ignored_until_the_resend() -> None:
    assembly, cut, _ = opened()
    put(assembly, cut[0])
    with pytest.raises(CorruptData):
        assembly.write(cut[1].offset, cut[1].xxh3, flipped(cut[1]))

    assert [put(assembly, chunk) for chunk in cut[2:4]] == [False, False]
    assert assembly.received == 16
    assert put(assembly, cut[1])
    assert put(assembly, cut[2])
    assert assembly.received == 48


def test_a_resend_that_is_corrupt_again_is_reported_again() -> None:
    assembly, cut, _ = opened()

    for _ in range(2):
        with pytest.raises(CorruptData):
            assembly.write(0, cut[0].xxh3, flipped(cut[0]))


def test_a_truncated_chunk_is_corrupt() -> None:
    assembly, cut, _ = opened()

    with pytest.raises(CorruptData):
        assembly.write(0, cut[0].xxh3, cut[0].data[:-1])
    assert assembly.received == 0


def test_reordered_chunks_are_asked_for_again_once_each_loss() -> None:
    assembly, cut, _ = opened()
    put(assembly, cut[0])

    with pytest.raises(CorruptData, match="expected byte 16, got 32") as caught:
        put(assembly, cut[2])
    assert caught.value.metadata["resume_at"] == "16"
    assert put(assembly, cut[3]) is False

    put(assembly, cut[1])
    with pytest.raises(CorruptData, match="expected byte 32, got 48"):
        put(assembly, cut[3])


def test_duplicate_chunks_change_nothing_whatever_they_hold() -> None:
    assembly, cut, tensors = opened()
    for chunk in cut:
        put(assembly, chunk)
        assert put(assembly, chunk) is False
        assert assembly.write(chunk.offset, 0, b"x" * len(chunk.data)) is False

    staged = assembly.finish()
    assert all(same_bits(staged.tensors[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 4), (0, 0), (8, 16), (0, 17), (0, 1 << 12), (1 << 62, 1)],
    ids=["negative", "empty", "partly repeated", "longer repeat", "past the end", "far past the end"],
)
def test_chunks_that_no_sender_of_ours_sends_are_refused(offset: int, size: int) -> None:
    assembly, cut, _ = opened()
    put(assembly, cut[0])
    raw = b"y" * size

    with pytest.raises(ProtocolViolation):
        assembly.write(offset, xxhash.xxh3_64_intdigest(raw), raw)
    assert assembly.received == 16


def test_an_unfinished_version_cannot_be_finished() -> None:
    assembly, cut, _ = opened()
    for chunk in cut[:-1]:
        put(assembly, chunk)

    with pytest.raises(ProtocolViolation, match="ends after"):
        assembly.finish()


def test_tensors_that_are_not_what_the_manifest_says_are_named_and_the_version_starts_over() -> None:
    tensors = sample_tensors()
    manifest, good = lay_out(tensors)
    data = good.clone()
    entries = {entry.name: entry for entry in manifest.tensors}
    data[entries["c.weight"].offset] ^= 1
    data[entries["f.flags"].offset + 1] ^= 1
    assembly = WeightAssembly(manifest, manifest.total_bytes)
    for chunk in chunks(data, 0, 16):
        put(assembly, chunk)

    with pytest.raises(CorruptData, match=r"'c.weight', 'f.flags'$"):
        assembly.finish()

    assert assembly.received == 0
    for chunk in chunks(good, 0, 16):
        put(assembly, chunk)
    assert same_bits(assembly.finish().tensors["f.flags"], tensors["f.flags"])


def test_an_empty_tensor_with_a_wrong_hash_is_found_too() -> None:
    entries = (TensorEntry("nothing", "F32", (0,), 0, 0, bytes(16)),)
    assembly = WeightAssembly(Manifest(entries, 0, content_hash(entries), layout_hash(entries)), 0)

    with pytest.raises(CorruptData, match="nothing"):
        assembly.finish()


def test_a_version_without_any_tensor_is_complete_at_once() -> None:
    manifest, _ = lay_out({})

    assert WeightAssembly(manifest, 0).finish().tensors == {}


def test_a_version_of_empty_tensors_alone_is_complete_at_once() -> None:
    manifest, _ = lay_out({"a": torch.zeros(0), "b": torch.zeros(2, 0, dtype=torch.bfloat16)})

    tensors = WeightAssembly(manifest, 0).finish().tensors

    assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} == {
        "a": ((0,), torch.float32),
        "b": ((2, 0), torch.bfloat16),
    }


def test_nothing_is_written_after_the_end() -> None:
    assembly, cut, _ = opened()
    for chunk in cut:
        put(assembly, chunk)
    staged = assembly.finish()
    before = staged.tensors["c.weight"].clone()

    with pytest.raises(ProtocolViolation):
        put(assembly, cut[0])
    with pytest.raises(ProtocolViolation):
        assembly.finish()
    assert same_bits(staged.tensors["c.weight"], before)


def test_encoded_bytes_must_be_those_of_the_manifest() -> None:
    manifest, _ = lay_out(sample_tensors())

    with pytest.raises(ProtocolViolation):
        WeightAssembly(manifest, manifest.total_bytes + 1)
