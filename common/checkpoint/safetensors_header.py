"""The header of a safetensors file: which tensor lies where.

The file is an 8-byte little-endian header length, a JSON header, and the tensors without gaps
(https://github.com/huggingface/safetensors#format). Headers come from shared storage, so `parse_header` trusts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from common.checkpoint.strict_json import parse_strictly
from common.errors import LimitExceeded, MalformedData
from common.weights.manifest import RESERVED_NAME, Manifest, TensorEntry, validate_entry

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
"""20,000 tensors with names of 512 characters need 13 MiB; the format itself allows 100 MB."""
MARKS_A_TENSOR = 20
"""Braces, brackets and commas that the entry of one tensor of 8 dimensions has at most, with room to spare."""
FREE_MARKS = 1000
"""The same for the remarks."""
SHOWN_CHARACTERS = 80
NO_HASH = bytes(16)


def build_header(manifest: Manifest, remarks: Mapping[str, str]) -> bytes:
    """Length and JSON of the header for these tensors at their offsets, padded so that they start at a multiple of 8."""
    entries: dict[str, object] = {RESERVED_NAME: dict(remarks)}
    for entry in manifest.tensors:
        entries[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.offset, entry.offset + entry.length],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def header_length(prefix: bytes, file_bytes: int) -> int:
    """Bytes of the JSON header, from the first 8 bytes of a file. Raises MalformedData or LimitExceeded."""
    if len(prefix) != LENGTH_BYTES:
        raise MalformedData(f"a safetensors file of {file_bytes} bytes")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise LimitExceeded(f"a safetensors header of {length} bytes, at most {MAX_HEADER_BYTES}")
    if LENGTH_BYTES + length > file_bytes:
        raise MalformedData(f"a safetensors header of {length} bytes in a file of {file_bytes}")
    return length


def parse_header(text: bytes, data_bytes: int, *, max_tensors: int) -> tuple[tuple[TensorEntry, ...], dict[str, str]]:
    """The tensors in the order of their bytes (hashes all zero), and the remarks.

    Refuses a key twice, gaps, overlaps, unknown dtypes, shapes that do not fit their bytes, and bytes that belong to no
    tensor: MalformedData. Refuses more than `max_tensors` before it parses anything: LimitExceeded.
    """
    # Counting bytes takes milliseconds where parsing a million entries takes seconds.
    marks = text.count(b"{") + text.count(b"[") + text.count(b",")
    if marks > max_tensors * MARKS_A_TENSOR + FREE_MARKS:
        raise LimitExceeded(f"a safetensors header with too much in it for {max_tensors} tensors")
    try:
        document = parse_strictly(text)
    except ValueError as error:
        raise MalformedData(f"a safetensors header that is no JSON: {str(error)[:SHOWN_CHARACTERS]}") from error
    if not isinstance(document, dict):
        raise MalformedData("a safetensors header that is no JSON object")
    remarks = _remarks(document.pop(RESERVED_NAME, {}))
    if len(document) > max_tensors:
        raise LimitExceeded(f"{len(document)} tensors in a safetensors file, at most {max_tensors}")
    # Stable: tensors without bytes stay in the header's order.
    entries = sorted((_entry(name, value) for name, value in document.items()), key=_span)
    offset = 0
    for entry in entries:
        validate_entry(entry, offset)
        offset += entry.length
    if offset != data_bytes:
        raise MalformedData(f"the tensors of a safetensors file have {offset} bytes, the file {data_bytes}")
    return tuple(entries), remarks


def _span(entry: TensorEntry) -> tuple[int, int]:
    return entry.offset, entry.length


def _remarks(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise MalformedData(f"a safetensors header whose {RESERVED_NAME} is no map of texts")
    return value


def _entry(name: str, value: Any) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedData(f"tensor {_shown(name)} needs dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not (isinstance(dtype, str) and _are_counts(shape) and _are_counts(offsets)):
        raise MalformedData(f"tensor {_shown(name)} has a dtype, shape or offsets of the wrong type")
    if len(offsets) != 2 or offsets[0] > offsets[1]:  # noqa: PLR2004 - first and end
        raise MalformedData(f"tensor {_shown(name)} lies at {_shown(offsets)}")
    return TensorEntry(name, dtype, tuple(shape), offsets[0], offsets[1] - offsets[0], NO_HASH)


def _are_counts(value: object) -> bool:
    # bool is a subclass of int, and JSON's 1.0 is a float: only plain integers count.
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _shown(value: object) -> str:
    return ascii(value)[:SHOWN_CHARACTERS]
