"""Times and waits on the wire. Our times are Unix seconds, as `time.time()` gives them."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from common.errors import MalformedData
from common.status import Wait
from protos.tandem.v1 import explorer_pb2

NANOSECONDS = 1_000_000_000
MAX_SECONDS = 253_402_300_799
"""The last second of the year 9999, where google.protobuf.Timestamp ends; it starts with the year 1."""
MIN_SECONDS = -62_135_596_800


def timestamp_to_proto(seconds: float) -> Timestamp:
    """The message of a time; to the microsecond, which is what a float of today's times holds."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return Timestamp(seconds=whole, nanos=micros * 1000)


def timestamp_from_proto(message: Timestamp) -> float:
    """Unix seconds of a peer's message. Raises MalformedData outside of the years 1 to 9999."""
    if not (MIN_SECONDS <= message.seconds <= MAX_SECONDS and 0 <= message.nanos < NANOSECONDS):
        raise MalformedData(f"a timestamp of {message.seconds} s and {message.nanos} ns")
    return message.seconds + message.nanos / NANOSECONDS


def wait_to_proto(wait: Wait) -> explorer_pb2.Wait:
    """The message of a wait."""
    message = explorer_pb2.Wait(waiting_for=wait.waiting_for, since=timestamp_to_proto(wait.since))
    if wait.deadline is not None:
        message.deadline.CopyFrom(timestamp_to_proto(wait.deadline))
    return message


def wait_from_proto(message: explorer_pb2.Wait) -> Wait:
    """The wait of a peer's message. Raises MalformedData."""
    deadline = timestamp_from_proto(message.deadline) if message.HasField("deadline") else None
    return Wait(message.waiting_for, timestamp_from_proto(message.since), deadline)
