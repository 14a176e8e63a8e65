import pytest
import torch
import xxhash

from common.weights.shards import chunks


def test_chunks_cover_every_byte_in_order_with_the_checksum_of_the_wire_contract() -> None:
    data = torch.arange(10, dtype=torch.uint8)

    cut = [(chunk.offset, bytes(chunk.data), chunk.xxh3) for chunk in chunks(data, 0, 4)]

    expected = [(0, b"\x00\x01\x02\x03"), (4, b"\x04\x05\x06\x07"), (8, b"\x08\x09")]
    assert cut == [(offset, raw, xxhash.xxh3_64(raw, seed=0).intdigest()) for offset, raw in expected]


def test_the_checksum_is_xxh3_64_of_the_reference_implementation() -> None:
    # Known answer: XXH3_64bits of no bytes with seed 0 (xxHash's own sanity tests).
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2


def test_a_resumed_push_starts_in_the_middle() -> None:
    data = torch.arange(10, dtype=torch.uint8)

    assert [(chunk.offset, bytes(chunk.data)) for chunk in chunks(data, 7, 2)] == [(7, b"\x07\x08"), (9, b"\x09")]
    assert list(chunks(data, 10, 2)) == []


def test_chunks_are_not_copies() -> None:
    data = torch.zeros(8, dtype=torch.uint8)
    first = next(chunks(data, 0, 4))

    data[1] = 9

    assert bytes(first.data) == b"\x00\x09\x00\x00"


@pytest.mark.parametrize(("start", "chunk_bytes"), [(-1, 4), (9, 4), (0, 0), (0, -2)])
def test_senseless_cuts_are_refused_at_once(start: int, chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        chunks(torch.zeros(8, dtype=torch.uint8), start, chunk_bytes)
