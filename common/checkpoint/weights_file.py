"""`model.safetensors` of a checkpoint: written from a snapshot, read for rollouts."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import torch

from common.checkpoint.atomic import storage_errors
from common.checkpoint.files import open_regular
from common.checkpoint.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    build_header,
    header_length,
    parse_header,
)
from common.errors import CheckpointInvalid, LimitExceeded
from common.weights.manifest import Manifest, build_manifest, manifest_in_order, tensor_views

WEIGHTS_NAME = "model.safetensors"
HASH_REMARK = "tandem.manifest_hash"
"""Remark in the header of a file of ours: what its tensors, in the order of their bytes, must hash to."""
MAX_TENSORS = 20_000
MAX_BYTES = 64 << 30
"""As the defaults of `limits.manifest_tensors` and `limits.weights_bytes`."""
WRITE_BYTES = 1 << 30
"""Handed to one write call; Linux takes just under 2 GiB."""


def write_weights(path: Path, manifest: Manifest, data: torch.Tensor) -> None:
    """Writes a new safetensors file of the tensors in `data` (uint8 `[total_bytes]`, CPU), without copying them.

    Without fsync: that is the business of the folder's writer. Raises StorageFailed when the disk fails or `path`
    exists, ValueError when `data` is not what the manifest describes.
    """
    if data.dtype != torch.uint8 or data.numel() != manifest.total_bytes:
        raise ValueError(f"{data.numel()} items of {data.dtype} for {manifest.total_bytes} bytes of weights")
    header = build_header(manifest, {"format": "pt", HASH_REMARK: manifest.manifest_hash})
    with storage_errors(path, "cannot write"), path.open("xb", buffering=0) as file:
        for part in (memoryview(header), data.numpy().data):
            rest = part
            while rest:
                rest = rest[file.write(rest[:WRITE_BYTES]) :]


def read_weights(
    folder: Path, *, max_tensors: int = MAX_TENSORS, max_bytes: int = MAX_BYTES
) -> tuple[Manifest, dict[str, torch.Tensor]]:
    """The weights in `folder/model.safetensors`: their manifest, hashed from what lies there, and CPU tensors.

    The tensors are views of the mapped file, private to this process: hold the checkpoint (`leases.hold`) until they
    are gone. The manifest equals the one that was written; in a file of another program, which has no manifest, it is
    that of `build_manifest`. Raises CheckpointInvalid when the file is missing, no regular file, or not what our header
    promises; MalformedData or LimitExceeded for a hostile header, before memory is taken for it; StorageFailed.
    """
    path = folder / WEIGHTS_NAME
    with open_regular(path) as descriptor, storage_errors(path, "cannot read"):
        size = os.fstat(descriptor).st_size
        if size > max_bytes + LENGTH_BYTES + MAX_HEADER_BYTES:
            raise LimitExceeded(f"{path} has {size} bytes, limits.weights_bytes is {max_bytes}")
        length = header_length(os.pread(descriptor, LENGTH_BYTES, 0), size)
        start = LENGTH_BYTES + length
        entries, remarks = parse_header(
            os.pread(descriptor, length, LENGTH_BYTES), size - start, max_tensors=max_tensors
        )
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    mapped.madvise(mmap.MADV_WILLNEED)
    data = torch.from_numpy(np.frombuffer(mapped, dtype=np.uint8))[start:]
    tensors = tensor_views(Manifest(entries, size - start, "", ""), data)
    if HASH_REMARK not in remarks:
        return build_manifest(tensors), tensors
    manifest = manifest_in_order(tensors.items())
    if manifest.manifest_hash != remarks[HASH_REMARK]:
        raise CheckpointInvalid(
            f"{path} holds weights with hash {manifest.manifest_hash}, not {remarks[HASH_REMARK][:64]}"
        )
    return manifest, tensors
