"""Policy versions: their order, and the wire."""

import pytest

from common.errors import MalformedData
from common.weights.version import NEVER_APPLIED, PolicyVersion
from common.wire.versions import version_from_proto, version_to_proto
from protos.tandem.v1 import experience_pb2


def test_a_version_survives_the_wire() -> None:
    version = PolicyVersion(2, 17, "0123456789abcdef0123456789abcdef")
    sent = experience_pb2.PolicyVersion.FromString(version_to_proto(version).SerializeToString())
    assert version_from_proto(sent) == version


def test_an_absent_version_was_never_applied() -> None:
    assert version_from_proto(experience_pb2.PolicyVersion()) == NEVER_APPLIED


def test_the_epoch_comes_before_the_step() -> None:
    ordered = [PolicyVersion(0, 0), PolicyVersion(1, 0, "b"), PolicyVersion(1, 9, "a"), PolicyVersion(2, 3, "a")]
    assert sorted([*ordered[2:], *ordered[:2]]) == ordered
    assert PolicyVersion(1, 9) < PolicyVersion(2, 3)
    assert PolicyVersion(2, 3) >= PolicyVersion(2, 3)
    assert max(ordered) is ordered[-1]


def test_one_name_for_two_contents_is_neither_equal_nor_newer() -> None:
    one, other = PolicyVersion(1, 4, "a"), PolicyVersion(1, 4, "b")
    assert one != other
    assert not one < other
    assert not one > other
    assert not one <= other
    assert not one >= other


@pytest.mark.parametrize(
    "fields", [{"manifest_hash": "a" * 65}, {"step": 1 << 63}, {"run_epoch": (1 << 64) - 1}], ids=str
)
def test_what_would_overflow_later_is_refused(fields: dict[str, int | str]) -> None:
    with pytest.raises(MalformedData):
        version_from_proto(experience_pb2.PolicyVersion(**fields))
