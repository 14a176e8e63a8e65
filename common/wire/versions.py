"""Policy versions on the wire."""

from __future__ import annotations

from common.errors import MalformedData
from common.weights.version import PolicyVersion
from protos.tandem.v1 import experience_pb2

MAX_HASH_LENGTH = 64
"""Characters; ours have 32. The hash is compared, never interpreted, so nothing else is asked of it."""
MAX_COUNT = (1 << 63) - 1
"""Epochs and steps end up in int64 columns and files; a uint64 above it would overflow there."""


def version_to_proto(version: PolicyVersion) -> experience_pb2.PolicyVersion:
    """The message of a version."""
    return experience_pb2.PolicyVersion(
        run_epoch=version.run_epoch, step=version.step, manifest_hash=version.manifest_hash
    )


def version_from_proto(message: experience_pb2.PolicyVersion) -> PolicyVersion:
    """The version of a peer's message; an absent message gives `NEVER_APPLIED`. Raises MalformedData."""
    if len(message.manifest_hash) > MAX_HASH_LENGTH:
        raise MalformedData(f"a manifest_hash of {len(message.manifest_hash)} characters, at most {MAX_HASH_LENGTH}")
    if max(message.run_epoch, message.step) > MAX_COUNT:
        raise MalformedData(f"policy version ({message.run_epoch}, {message.step}) is beyond 2^63 - 1")
    return PolicyVersion(message.run_epoch, message.step, message.manifest_hash)
