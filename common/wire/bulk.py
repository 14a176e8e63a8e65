"""Wire bytes of the two bulk messages without upb's copies.

Building and serializing a proto with a large bytes field costs 4 to 5 copies of it, parsing 2. gRPC takes any function
as serializer, so the field's bytes are joined once on the way out, and sliced out of the message on the way in. What is
written is byte for byte what upb writes; whatever does not look exactly so is read by upb.

Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from common.errors import MalformedData
from protos.tandem.v1 import explorer_pb2

# Tags: field number << 3 | wire type (0 varint, 1 eight bytes, 2 length-delimited).
BATCH_TAG = explorer_pb2.StreamExperiencesResponse.BATCH_FIELD_NUMBER << 3 | 2
CHUNK_TAG = explorer_pb2.PushWeightsRequest.CHUNK_FIELD_NUMBER << 3 | 2
OFFSET_TAG = 1 << 3 | 0
XXH3_TAG = 2 << 3 | 1
DATA_TAG = 3 << 3 | 2
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


def wrap_batch(batch: bytes) -> bytes:
    """Wire bytes of `StreamExperiencesResponse{batch}` around a serialized ExperienceBatch: one copy of it."""
    return b"".join((bytes((BATCH_TAG,)), _varint(len(batch)), batch))


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
