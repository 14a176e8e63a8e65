"""Manifests: what the weights of one version are, tensor by tensor, and the hash that identifies them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import xxhash

from common.errors import LimitExceeded, MalformedData

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors' names of the dtypes."""
DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
MAX_DIMENSIONS = 8
MAX_NAME_LENGTH = 512
MAX_ELEMENTS = 1 << 60
"""Of a shape, counting empty dimensions as 1: beyond it torch's strides overflow, even for a tensor without bytes."""
SHOWN_CHARACTERS = 40
"""Of a peer's text in an error: it travels in gRPC metadata, which is limited to 8 KiB."""
RESERVED_NAME = "__metadata__"
"""safetensors keeps its remarks under this name; a tensor cannot have it."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a version."""

    name: str
    """As in the model's state dict; tied tensors appear once."""
    dtype: str
    """A key of `DTYPES`."""
    shape: tuple[int, ...]
    """Sizes of the dimensions."""
    offset: int
    """First byte in the version's data."""
    length: int
    """Bytes."""
    xxh3: bytes
    """xxh3-128 of the bytes: 16 bytes, big endian; empty where only the layout matters."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors of one version, ordered by offset, without gaps or overlaps."""

    tensors: tuple[TensorEntry, ...]
    total_bytes: int
    manifest_hash: str
    """Identity of the content: see `content_hash`."""
    layout_hash: str
    """Identity of names, dtypes and shapes: see `layout_hash`."""


def content_hash(tensors: tuple[TensorEntry, ...]) -> str:
    """Hex xxh3-128 over (name, dtype, shape, hash) of the tensors in order."""
    state = xxhash.xxh3_128()
    for entry in tensors:
        state.update(f"{entry.name}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
        state.update(entry.xxh3)
    return state.hexdigest()


def layout_hash(tensors: tuple[TensorEntry, ...]) -> str:
    """Hex xxh3-128 over (name, dtype, shape) of the tensors in order."""
    state = xxhash.xxh3_128()
    for entry in tensors:
        state.update(f"{entry.name}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
    return state.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as uint8 `[bytes]`, without a copy when it is contiguous and on the CPU."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def build_manifest(tensors: Mapping[str, torch.Tensor]) -> Manifest:
    """The manifest of these CPU tensors, laid out one after the other in the order of their names."""
    return manifest_in_order((name, tensors[name]) for name in sorted(tensors))


def manifest_in_order(tensors: Iterable[tuple[str, torch.Tensor]]) -> Manifest:
    """The manifest of these CPU tensors, laid out one after the other as they come."""
    entries: list[TensorEntry] = []
    offset = 0
    for name, tensor in tensors:
        data = tensor_bytes(tensor)
        digest = xxhash.xxh3_128_digest(data.numpy().data)
        entries.append(TensorEntry(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), offset, data.numel(), digest))
        offset += data.numel()
    frozen = tuple(entries)
    return Manifest(frozen, offset, content_hash(frozen), layout_hash(frozen))


def tensor_views(manifest: Manifest, data: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors in `data` (uint8 `[total_bytes]`, on the CPU), as views; of a validated manifest.

    A tensor whose offset is no multiple of its element size cannot be viewed by torch and is copied.
    """
    views: dict[str, torch.Tensor] = {}
    for entry in manifest.tensors:
        dtype = DTYPES[entry.dtype]
        if entry.length == 0:
            # torch refuses to view an empty array of numpy, whose stride is 0, as another dtype.
            views[entry.name] = torch.empty(entry.shape, dtype=dtype)
            continue
        raw = data[entry.offset : entry.offset + entry.length]
        if raw.storage_offset() % dtype.itemsize:
            raw = raw.clone()
        views[entry.name] = raw.view(dtype).reshape(entry.shape)
    return views


def validate_manifest(manifest: Manifest, *, max_tensors: int, max_bytes: int) -> None:
    """Refuses a manifest of a peer or a file that is inconsistent or over a limit.

    Raises LimitExceeded or MalformedData; allocates nothing that grows with what it claims.
    """
    if len(manifest.tensors) > max_tensors:
        raise LimitExceeded(f"{len(manifest.tensors)} tensors, limits.manifest_tensors is {max_tensors}")
    if manifest.total_bytes > max_bytes:
        raise LimitExceeded(f"{manifest.total_bytes} bytes of weights, limits.weights_bytes is {max_bytes}")
    names: set[str] = set()
    offset = 0
    for entry in manifest.tensors:
        validate_entry(entry, offset)
        if entry.name in names:
            raise MalformedData(f"tensor {entry.name!r} appears twice")
        names.add(entry.name)
        offset += entry.length
    if offset != manifest.total_bytes:
        raise MalformedData(f"the tensors have {offset} bytes, the manifest claims {manifest.total_bytes}")
    if (
        layout_hash(manifest.tensors) != manifest.layout_hash
        or content_hash(manifest.tensors) != manifest.manifest_hash
    ):
        raise MalformedData("the manifest's hashes are not those of its tensors")


def validate_entry(entry: TensorEntry, expected_offset: int) -> None:
    """Refuses a tensor that is inconsistent in itself or does not start where the one before ends: MalformedData."""
    if not 0 < len(entry.name) <= MAX_NAME_LENGTH:
        raise MalformedData(f"a tensor's name has {len(entry.name)} characters, allowed are 1 to {MAX_NAME_LENGTH}")
    if "\0" in entry.name or entry.name == RESERVED_NAME or not _is_unicode(entry.name):
        raise MalformedData(f"a tensor cannot be named {entry.name!r}")
    if entry.dtype not in DTYPES:
        raise MalformedData(
            f"tensor {entry.name!r} has dtype {entry.dtype[:SHOWN_CHARACTERS]!r}, known are {', '.join(DTYPES)}"
        )
    if len(entry.shape) > MAX_DIMENSIONS:
        raise MalformedData(f"tensor {entry.name!r} has {len(entry.shape)} dimensions, at most {MAX_DIMENSIONS}")
    if len(entry.xxh3) != 16:  # noqa: PLR2004 - 128 bits
        raise MalformedData(f"the hash of tensor {entry.name!r} has {len(entry.xxh3)} bytes, not 16")
    elements, extent = 1, 1
    for size in entry.shape:
        elements *= size
        extent *= max(size, 1)
    if extent > MAX_ELEMENTS:
        raise MalformedData(f"tensor {entry.name!r} has a shape beyond {MAX_ELEMENTS} elements")
    if elements * DTYPES[entry.dtype].itemsize != entry.length or min(entry.shape, default=0) < 0:
        raise MalformedData(f"tensor {entry.name!r} of shape {entry.shape} claims {entry.length} bytes")
    if entry.offset != expected_offset:
        raise MalformedData(f"tensor {entry.name!r} starts at byte {entry.offset}, expected {expected_offset}")


def _is_unicode(name: str) -> bool:
    """False for half a surrogate pair: JSON can spell it, UTF-8 (and so the hash and the wire) cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
