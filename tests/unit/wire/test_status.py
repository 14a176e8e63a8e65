"""Times and waits: to messages and back."""

from datetime import UTC, datetime

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from common.errors import MalformedData
from common.status import Wait
from common.wire.status import timestamp_from_proto, timestamp_to_proto, wait_from_proto, wait_to_proto
from protos.tandem.v1 import explorer_pb2

MOMENT = datetime(2026, 3, 4, 5, 6, 7, 250_000, UTC)


@pytest.mark.parametrize(
    ("seconds", "whole", "nanos"), [(1.25, 1, 250_000_000), (-0.5, -1, 500_000_000), (0.9999999, 1, 0)]
)
def test_nanoseconds_count_forward_from_whole_seconds(seconds: float, whole: int, nanos: int) -> None:
    assert timestamp_to_proto(seconds) == Timestamp(seconds=whole, nanos=nanos)


def test_protobuf_itself_reads_our_timestamps() -> None:
    assert timestamp_to_proto(MOMENT.timestamp()).ToDatetime(UTC) == MOMENT
    assert timestamp_from_proto(timestamp_to_proto(MOMENT.timestamp())) == MOMENT.timestamp()


@pytest.mark.parametrize("bad", [Timestamp(seconds=1 << 62), Timestamp(seconds=-(1 << 62)), Timestamp(nanos=-1)])
def test_a_time_outside_of_the_calendar_is_refused(bad: Timestamp) -> None:
    with pytest.raises(MalformedData):
        timestamp_from_proto(bad)


@pytest.mark.parametrize("deadline", [None, MOMENT.timestamp() + 600])
def test_a_wait_survives_the_wire(deadline: float | None) -> None:
    wait = Wait("a newer version", MOMENT.timestamp(), deadline)
    returned = wait_from_proto(explorer_pb2.Wait.FromString(wait_to_proto(wait).SerializeToString()))
    assert (returned.waiting_for, returned.since, returned.deadline) == (wait.waiting_for, wait.since, deadline)
