"""Encodings of weights on the wire."""

from __future__ import annotations

from common.errors import ProtocolViolation
from common.weights.encoding import Encoding
from protos.tandem.v1 import weights_pb2

_TO_PROTO = {
    Encoding.FULL: weights_pb2.WEIGHT_ENCODING_FULL,
    Encoding.DELTA: weights_pb2.WEIGHT_ENCODING_DELTA,
    Encoding.DELTA_ZSTD: weights_pb2.WEIGHT_ENCODING_DELTA_ZSTD,
}
_FROM_PROTO: dict[int, Encoding] = {number: encoding for encoding, number in _TO_PROTO.items()}


def encoding_to_proto(encoding: Encoding) -> weights_pb2.WeightEncoding.ValueType:
    """The enum's value of an encoding."""
    return _TO_PROTO[encoding]


def encoding_from_proto(value: int) -> Encoding:
    """The encoding of a peer's value. Raises ProtocolViolation naming the known ones."""
    encoding = _FROM_PROTO.get(value)
    if encoding is None:
        known = ", ".join(f"{number} ({known.value})" for number, known in _FROM_PROTO.items())
        raise ProtocolViolation(f"encoding {value} is unknown; known are {known}")
    return encoding
