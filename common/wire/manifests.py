"""Manifests on the wire."""

from __future__ import annotations

from common.config.root import LimitsConfig
from common.errors import LimitExceeded, MalformedData
from common.weights.manifest import MAX_DIMENSIONS, Manifest, TensorEntry, validate_manifest
from protos.tandem.v1 import weights_pb2


def manifest_to_proto(manifest: Manifest) -> weights_pb2.Manifest:
    """The message of a manifest."""
    return weights_pb2.Manifest(
        tensors=[
            weights_pb2.TensorEntry(
                name=entry.name,
                dtype=entry.dtype,
                shape=entry.shape,
                offset=entry.offset,
                length=entry.length,
                xxh3=entry.xxh3,
            )
            for entry in manifest.tensors
        ],
        total_bytes=manifest.total_bytes,
        manifest_hash=manifest.manifest_hash,
        layout_hash=manifest.layout_hash,
    )


def manifest_from_proto(message: weights_pb2.Manifest, limits: LimitsConfig) -> Manifest:
    """The manifest of a peer's message, consistent in itself. Raises LimitExceeded or MalformedData."""
    if len(message.tensors) > limits.manifest_tensors:
        raise LimitExceeded(f"{len(message.tensors)} tensors, limits.manifest_tensors is {limits.manifest_tensors}")
    manifest = Manifest(
        tensors=tuple(_entry(entry) for entry in message.tensors),
        total_bytes=message.total_bytes,
        manifest_hash=message.manifest_hash,
        layout_hash=message.layout_hash,
    )
    validate_manifest(manifest, max_tensors=limits.manifest_tensors, max_bytes=limits.weights_bytes)
    return manifest


def _entry(message: weights_pb2.TensorEntry) -> TensorEntry:
    # Before the tuple is made: a million sizes would be multiplied into a number of 20 million digits.
    if len(message.shape) > MAX_DIMENSIONS:
        raise MalformedData(f"a tensor has {len(message.shape)} dimensions, at most {MAX_DIMENSIONS}")
    return TensorEntry(
        name=message.name,
        dtype=message.dtype,
        shape=tuple(message.shape),
        offset=message.offset,
        length=message.length,
        xxh3=message.xxh3,
    )
