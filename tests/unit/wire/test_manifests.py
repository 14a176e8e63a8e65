"""Manifests: to messages and back, checked on the way in."""

from collections.abc import Callable

import pytest
import torch

from common.config.root import LimitsConfig
from common.errors import LimitExceeded, MalformedData, TandemError
from common.weights.manifest import build_manifest
from common.wire.manifests import manifest_from_proto, manifest_to_proto
from protos.tandem.v1 import weights_pb2

LIMITS = LimitsConfig()
TENSORS = {"b": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a": torch.ones((), dtype=torch.bfloat16)}


def message() -> weights_pb2.Manifest:
    return manifest_to_proto(build_manifest(TENSORS))


def test_a_manifest_survives_the_wire() -> None:
    sent = weights_pb2.Manifest.FromString(message().SerializeToString())
    assert manifest_from_proto(sent, LIMITS) == build_manifest(TENSORS)


def test_the_message_says_what_the_tensors_are() -> None:
    first, second = message().tensors
    assert (first.name, first.dtype, list(first.shape), first.offset, first.length) == ("a", "BF16", [], 0, 2)
    assert (second.name, second.dtype, list(second.shape), second.offset, second.length) == ("b", "F32", [2, 3], 2, 24)
    assert message().total_bytes == 26


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda bad: setattr(bad.tensors[1], "offset", 0), MalformedData),
        (lambda bad: setattr(bad.tensors[1], "length", 23), MalformedData),
        (lambda bad: setattr(bad.tensors[1], "name", "a"), MalformedData),
        (lambda bad: setattr(bad.tensors[1], "dtype", "F8"), MalformedData),
        (lambda bad: setattr(bad.tensors[1], "xxh3", b"\0" * 16), MalformedData),
        (lambda bad: setattr(bad, "layout_hash", "0" * 32), MalformedData),
        (lambda bad: setattr(bad, "total_bytes", 1 << 60), LimitExceeded),
        (lambda bad: bad.tensors[1].shape.extend([2**63] * 100_000), MalformedData),
        (lambda bad: bad.tensors.extend([bad.tensors[0]] * 20_000), LimitExceeded),
    ],
)
def test_a_manifest_that_lies_is_refused(
    change: Callable[[weights_pb2.Manifest], object], error: type[TandemError]
) -> None:
    bad = message()
    change(bad)
    with pytest.raises(error):
        manifest_from_proto(bad, LIMITS)
