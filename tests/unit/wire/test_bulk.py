"""The hand-written wire codec and upb's: held equal, in both directions."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import MalformedData
from common.wire.bulk import ChunkView, parse_push_request, serialize_or_pass, serialize_push_chunk, wrap_batch
from protos.tandem.v1 import experience_pb2, explorer_pb2, weights_pb2

uint64 = st.integers(0, 2**64 - 1)
payloads = st.one_of(st.binary(max_size=300), st.sampled_from([b"\1" * 16_383, b"\2" * 16_384]))


def by_upb(offset: int, xxh3: int, data: bytes) -> bytes:
    chunk = weights_pb2.WeightChunk(offset=offset, xxh3=xxh3, data=data)
    return explorer_pb2.PushWeightsRequest(chunk=chunk).SerializeToString()


def read(data: bytes) -> tuple[int, int, bytes]:
    chunk = parse_push_request(data)
    assert isinstance(chunk, ChunkView)
    return chunk.offset, chunk.xxh3, bytes(chunk.data)


def read_by_upb(data: bytes) -> tuple[int, int, bytes] | None:
    message = explorer_pb2.PushWeightsRequest.FromString(data)
    if message.WhichOneof("message") != "chunk":
        return None
    return message.chunk.offset, message.chunk.xxh3, message.chunk.data


@settings(deadline=None)
@given(uint64, uint64, payloads)
@example(0, 0, b"")
@example(2**64 - 1, 2**64 - 1, b"\0")
def test_chunks_are_written_and_read_as_upb_does(offset: int, xxh3: int, data: bytes) -> None:
    wire = serialize_push_chunk(offset, xxh3, memoryview(data))
    assert wire == by_upb(offset, xxh3, data)
    assert read(wire) == (offset, xxh3, data)


@settings(deadline=None)
@given(st.binary(max_size=64))
@example(b"\x12\x00")
@example(b"\x12\x02\x08\x00")
@example(b"\x12\x03\x08\x80\x00")
@example(b"\x12\x05\x08\xff\xff\xff\x7f")
@example(b"\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(b"\x12\x02\x1a\x05")
@example(b"\x12\x02\x1a\x00\x12\x00")
@example(b"\x12\x01\x11")
@example(b"\x12\x05")
@example(b"\x12")
@example(b"\x0a\x00")
@example(b"")
def test_any_bytes_are_read_as_upb_does(data: bytes) -> None:
    try:
        expected = read_by_upb(data)
    except DecodeError:
        with pytest.raises(MalformedData):
            parse_push_request(data)
        return
    if expected is None:
        assert parse_push_request(data) == explorer_pb2.PushWeightsRequest.FromString(data)
    else:
        assert read(data) == expected


@settings(deadline=None)
@given(uint64, st.binary(min_size=1, max_size=40), st.data())
def test_near_misses_are_read_as_upb_does(offset: int, payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(serialize_push_chunk(offset, 7, payload))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    test_any_bytes_are_read_as_upb_does.hypothesis.inner_test(bytes(damaged))


FIELDS = {
    "offset": b"\x08\x96\x01",
    "xxh3": b"\x11" + (5).to_bytes(8, "little"),
    "data": b"\x1a\x03abc",
    "other data": b"\x1a\x02de",
    "unknown varint": b"\x78\x01",
    "unknown bytes": b"\x7a\x02hi",
}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(FIELDS)), max_size=8), st.lists(st.sampled_from(sorted(FIELDS)), max_size=3))
def test_reordered_repeated_and_unknown_fields_are_read_as_upb_does(names: list[str], more: list[str]) -> None:
    # A message field that comes twice is merged, as the encoding demands.
    chunks = [b"".join(FIELDS[name] for name in part) for part in (names, more) if part or part is names]
    wire = b"".join(b"\x12" + bytes([len(chunk)]) + chunk for chunk in chunks)
    assert read(wire) == read_by_upb(wire)


def test_the_payload_is_sliced_not_copied() -> None:
    wire = serialize_push_chunk(150, 5, b"payload")
    chunk = parse_push_request(wire)
    assert isinstance(chunk, ChunkView)
    assert chunk.data.obj is wire
    assert chunk.data.readonly


def test_an_offer_passes_through() -> None:
    offer = explorer_pb2.PushWeightsRequest(offer=weights_pb2.WeightOffer(encoded_bytes=5))
    assert parse_push_request(offer.SerializeToString()) == offer


def test_payloads_of_wider_items_are_counted_in_bytes() -> None:
    words = memoryview(bytes(range(8))).cast("I")
    assert serialize_push_chunk(1, 2, words) == by_upb(1, 2, bytes(range(8)))


@settings(deadline=None)
@given(uint64, payloads)
@example(0, b"")
def test_a_wrapped_batch_is_what_upb_writes(sequence: int, columns: bytes) -> None:
    batch = experience_pb2.ExperienceBatch(sequence=sequence, columns=columns)
    wire = wrap_batch(batch.SerializeToString())
    assert wire == explorer_pb2.StreamExperiencesResponse(batch=batch).SerializeToString()


def test_a_stream_carries_messages_and_wire_bytes() -> None:
    hello = explorer_pb2.StreamExperiencesResponse(hello=explorer_pb2.Hello(incarnation=1))
    assert serialize_or_pass(hello) == hello.SerializeToString()
    assert serialize_or_pass(b"\x12\x00") == b"\x12\x00"
