"""The hand-written wire codec and upb's: held equal, in both directions."""

import pytest
import xxhash
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import MalformedData
from common.wire.bulk import (
    BatchView,
    ChunkView,
    parse_push_request,
    parse_stream_response,
    serialize_batch,
    serialize_or_pass,
    serialize_push_chunk,
    wrap_batch,
)
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


def batch_by_upb(data: bytes) -> tuple[bytes, bytes] | None:
    """The batch without its columns, and these; None where the message is another one."""
    message = explorer_pb2.StreamExperiencesResponse.FromString(data)
    if message.WhichOneof("message") != "batch":
        return None
    columns = message.batch.columns
    message.batch.ClearField("columns")
    return message.batch.SerializeToString(deterministic=True), columns


def read_batch(data: bytes) -> tuple[bytes, bytes]:
    view = parse_stream_response(data)
    assert isinstance(view, BatchView)
    rest = experience_pb2.ExperienceBatch()
    rest.CopyFrom(view.fields)
    rest.ClearField("columns")
    return rest.SerializeToString(deterministic=True), bytes(view.columns)


def batch_wire(fields: experience_pb2.ExperienceBatch, *pieces: bytes) -> bytes:
    return bytes(serialize_batch(fields, pieces)[0])


@settings(deadline=None)
@given(uint64, st.lists(payloads, min_size=1, max_size=3))
def test_a_batch_is_written_and_read_as_upb_does(sequence: int, pieces: list[bytes]) -> None:
    pieces[0] += b"-"  # there is no batch without columns
    groups = [experience_pb2.ExperienceGroup(task_id="a/1", ordinal=4, experience_count=2)]
    fields = experience_pb2.ExperienceBatch(explorer_id="e", sequence=sequence, groups=groups)
    columns = b"".join(pieces)
    whole = experience_pb2.ExperienceBatch(columns=columns, columns_xxh3=xxhash.xxh3_64(columns).intdigest())
    whole.MergeFrom(fields)
    wire = batch_wire(fields, *pieces)
    assert wire == whole.SerializeToString()
    assert read_batch(wrap_batch(wire)) == batch_by_upb(wrap_batch(wire))


@settings(deadline=None)
@given(st.binary(max_size=64))
@example(b"\x12\x00")
@example(b"\x12\x03\x0a\x01\xff")
@example(b"\x12\x06\x22\x01a\x0a\x01\xff")
@example(b"\x12\x03\x22\x05a")
@example(b"\x12\x03\x22\x01a\x0a\x00")
@example(b"\x12\x05\x22\x01a\x23\x24")
@example(b"\x12\x05\x22\x01a\x07\x00")
@example(b"\x12\x05\x22\x01a\x00\x00")
def test_any_bytes_are_read_as_a_batch_as_upb_does(data: bytes) -> None:
    try:
        expected = batch_by_upb(data)
    except DecodeError:
        with pytest.raises(MalformedData):
            parse_stream_response(data)
        return
    if expected is None:
        assert parse_stream_response(data) == explorer_pb2.StreamExperiencesResponse.FromString(data)
    else:
        assert read_batch(data) == expected


@settings(deadline=None)
@given(payloads, st.data())
def test_damaged_batches_are_read_as_upb_does(columns: bytes, data: st.DataObject) -> None:
    group = experience_pb2.ExperienceGroup(task_id="t", metrics={"m": 1.0})
    fields = experience_pb2.ExperienceBatch(explorer_id="e", sequence=300, groups=[group])
    damaged = bytearray(wrap_batch(batch_wire(fields, columns)))
    place = data.draw(st.sampled_from([*range(min(len(damaged), 40)), *range(-12, 0)]))
    damaged[place] = data.draw(st.integers(0, 255))
    test_any_bytes_are_read_as_a_batch_as_upb_does.hypothesis.inner_test(bytes(damaged))


BATCH_FIELDS = {
    "id": b"\x0a\x01e",
    "sequence": b"\x10\x96\x01",
    "group": b"\x1a\x02\x10\x05",
    "columns": b"\x22\x03abc",
    "xxh3": b"\x29" + (5).to_bytes(8, "little"),
    "unknown fixed32": b"\x7d\1\2\3\4",
    "unknown bytes": b"\x7a\x02hi",
}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(BATCH_FIELDS)), max_size=8), st.booleans())
def test_batches_with_fields_in_any_order_are_read_as_upb_does(names: list[str], twice: bool) -> None:
    body = b"".join(BATCH_FIELDS[name] for name in names)
    wire = (b"\x12" + bytes([len(body)]) + body) * (1 + twice)
    assert read_batch(wire) == batch_by_upb(wire)


def test_the_columns_of_a_batch_are_sliced_not_copied() -> None:
    wire = wrap_batch(batch_wire(experience_pb2.ExperienceBatch(sequence=1), b"columns"))
    view = parse_stream_response(wire)
    assert isinstance(view, BatchView)
    assert view.columns.obj is wire
    assert view.columns.readonly
