"""Wire bytes of the bulk messages, chunks of weights and batches of experiences, without upb's copies.

Building and serializing a proto with a large bytes field costs 4 to 5 copies of it, parsing 2. gRPC takes any function
as serializer, so the field's bytes are joined once on the way out, and sliced out of the message on the way in. What is
written is byte for byte what upb writes; whatever does not look exactly so is read by upb.

Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from google.protobuf.message import DecodeError, Message

from common.errors import MalformedData
from common.experience.columns import Buffer, joined
from protos.tandem.v1 import experience_pb2, explorer_pb2

# Tags: field number << 3 | wire type (0 varint, 1 eight bytes, 2 length-delimited).
BATCH_TAG = explorer_pb2.StreamExperiencesResponse.BATCH_FIELD_NUMBER << 3 | 2
CHUNK_TAG = explorer_pb2.PushWeightsRequest.CHUNK_FIELD_NUMBER << 3 | 2
OFFSET_TAG = 1 << 3 | 0
XXH3_TAG = 2 << 3 | 1
DATA_TAG = 3 << 3 | 2
COLUMNS_TAG = experience_pb2.ExperienceBatch.COLUMNS_FIELD_NUMBER << 3 | 2
COLUMNS_XXH3_TAG = experience_pb2.ExperienceBatch.COLUMNS_XXH3_FIELD_NUMBER << 3 | 1
FIXED_BYTES = {1: 8, 5: 4}
"""Of the wire types whose values have one size."""
XXH3_BYTES = 8
UINT64_END = 1 << 64


@dataclass(frozen=True, slots=True, eq=False)
class ChunkView:
    """A `WeightChunk` whose data still lies in the message that it came in."""

    offset: int
    """Position of the first byte in the encoded bytes."""
    xxh3: int
    """xxh3-64 (seed 0) of `data`, as the sender claims; not verified yet."""
    data: memoryview
    """uint8, read-only; keeps the whole message in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchView:
    """An `ExperienceBatch` whose columns still lie in the message that it came in."""

    fields: experience_pb2.ExperienceBatch
    """Everything else of it; its own `columns` may be empty."""
    columns: memoryview
    """uint8, read-only; keeps the whole message in memory."""


def serialize_push_chunk(offset: int, xxh3: int, data: memoryview | bytes) -> bytes:
    """Wire bytes of `PushWeightsRequest{chunk{offset, xxh3, data}}`: one copy of the data."""
    size = memoryview(data).nbytes
    # proto3 leaves out what is 0.
    fields = b"".join(
        (
            bytes((OFFSET_TAG,)) + _varint(offset) if offset else b"",
            bytes((XXH3_TAG,)) + xxh3.to_bytes(XXH3_BYTES, "little") if xxh3 else b"",
            bytes((DATA_TAG,)) + _varint(size) if size else b"",
        )
    )
    return b"".join((bytes((CHUNK_TAG,)), _varint(len(fields) + size), fields, data))


def parse_push_request(data: bytes) -> explorer_pb2.PushWeightsRequest | ChunkView:
    """A push's message from its wire bytes; a chunk always comes as a view. Raises MalformedData."""
    chunk = _parse_plain_chunk(data)
    if chunk is not None:
        return chunk
    try:
        message = explorer_pb2.PushWeightsRequest.FromString(data)
    except DecodeError as error:
        raise MalformedData(f"{len(data)} bytes that are no PushWeightsRequest") from error
    if message.WhichOneof("message") == "chunk":
        return ChunkView(message.chunk.offset, message.chunk.xxh3, memoryview(message.chunk.data))
    return message


def wrap_batch(batch: bytes | bytearray) -> bytes:
    """Wire bytes of `StreamExperiencesResponse{batch}` around a serialized ExperienceBatch: one copy of it."""
    return b"".join((bytes((BATCH_TAG,)), _varint(len(batch)), batch))


def serialize_batch(fields: experience_pb2.ExperienceBatch, columns: Sequence[Buffer]) -> tuple[bytearray, memoryview]:
    """Wire bytes of an ExperienceBatch with these fields, the joined pieces as its columns, and their checksum.

    `fields` has neither `columns` nor `columns_xxh3`: these are the last ones, so they follow what upb writes. One copy of
    the data; the view is the columns within the bytes, which cannot be resized while it lives.
    """
    size = sum(piece.nbytes if isinstance(piece, np.ndarray) else len(piece) for piece in columns)
    prefix = fields.SerializeToString() + bytes((COLUMNS_TAG,)) + _varint(size)
    checksum = bytes((COLUMNS_XXH3_TAG,)) + bytes(XXH3_BYTES)
    wire = joined((prefix, *columns, checksum))
    view = memoryview(wire)[len(prefix) : len(prefix) + size]
    # Hashed where it lies, in one go; then the place that was left for it is filled.
    wire[-XXH3_BYTES:] = xxhash.xxh3_64_intdigest(view).to_bytes(XXH3_BYTES, "little")
    return wire, view


def parse_stream_response(data: bytes) -> explorer_pb2.StreamExperiencesResponse | BatchView:
    """An explorer's message from its wire bytes; a batch always comes as a view. Raises MalformedData."""
    try:
        batch = _parse_plain_batch(data)
        if batch is not None:
            return batch
        message = explorer_pb2.StreamExperiencesResponse.FromString(data)
    except DecodeError as error:
        raise MalformedData(f"{len(data)} bytes that are no StreamExperiencesResponse") from error
    if message.WhichOneof("message") == "batch":
        return BatchView(message.batch, memoryview(message.batch.columns))
    return message


def serialize_or_pass(message: Message | bytes) -> bytes:
    """A gRPC serializer for streams that carry both messages and wire bytes made here."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value >= 1 << 7:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _read_varint(data: bytes, position: int) -> tuple[int, int] | None:
    """Value and the position after it; None where it is cut off, above 64 bits or longer than need be."""
    value = shift = 0
    for index in range(position, min(position + 10, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 1 << 7:
            canonical = (byte or index == position) and value < UINT64_END
            return (value, index + 1) if canonical else None
        shift += 7
    return None


def _parse_plain_chunk(data: bytes) -> ChunkView | None:
    """The chunk when the bytes are as `serialize_push_chunk` writes them; None for every other message."""
    if not data or data[0] != CHUNK_TAG:
        return None
    outer = _read_varint(data, 1)
    if outer is None or outer[0] != len(data) - outer[1]:
        return None
    position = outer[1]
    offset = xxh3 = 0
    payload = memoryview(b"")
    if data[position : position + 1] == bytes((OFFSET_TAG,)):
        read = _read_varint(data, position + 1)
        if read is None:
            return None
        offset, position = read
    if data[position : position + 1] == bytes((XXH3_TAG,)) and position + 1 + XXH3_BYTES <= len(data):
        xxh3 = int.from_bytes(data[position + 1 : position + 1 + XXH3_BYTES], "little")
        position += 1 + XXH3_BYTES
    if data[position : position + 1] == bytes((DATA_TAG,)):
        read = _read_varint(data, position + 1)
        if read is None or read[0] > len(data) - read[1]:
            return None
        payload = memoryview(data)[read[1] : read[1] + read[0]]
        position = read[1] + read[0]
    return ChunkView(offset, xxh3, payload) if position == len(data) else None


def _parse_plain_batch(data: bytes) -> BatchView | None:
    """The batch of a message that is nothing else, with its columns in one piece; None for every other message.

    upb reads all but the columns, so that it alone decides what is valid. Raises DecodeError.
    """
    if not data or data[0] != BATCH_TAG:
        return None
    outer = _read_varint(data, 1)
    if outer is None or outer[0] != len(data) - outer[1]:
        return None
    position = outer[1]
    found: tuple[int, int, int] | None = None
    while position < len(data):
        begin = position
        tag = _read_varint(data, begin)
        value = _skip_value(data, *tag) if tag is not None else None
        if tag is None or value is None:
            return None
        content, position = value
        if tag[0] == COLUMNS_TAG:
            if found is not None:
                return None
            found = (begin, content, position)
    if found is None:
        return None
    begin, content, end = found
    view = memoryview(data)
    fields = experience_pb2.ExperienceBatch.FromString(b"".join((view[outer[1] : begin], view[end:])))
    return BatchView(fields, view[content:end])


def _skip_value(data: bytes, tag: int, position: int) -> tuple[int, int] | None:
    """Where the value at `position` begins and ends, its length left out; None where it is cut off or a group."""
    match tag & 7:
        case 0:
            read = _read_varint(data, position)
            return (position, read[1]) if read is not None else None
        case 2:
            read = _read_varint(data, position)
            return (read[1], read[1] + read[0]) if read is not None and read[0] <= len(data) - read[1] else None
        case fixed if fixed in FIXED_BYTES:
            end = position + FIXED_BYTES[fixed]
            return (position, end) if end <= len(data) else None
    return None
