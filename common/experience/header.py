"""The header of a columnar batch: which column lies where in a safetensors file image.

The image is an 8-byte little-endian header length, a JSON header padded with spaces to a multiple of 8 bytes, and the
columns without gaps (https://github.com/huggingface/safetensors#format). It comes from peers and files, so
`parse_header` trusts nothing in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import LimitExceeded, MalformedData

DTYPES: Mapping[str, np.dtype[Any]] = {
    "token_offsets": np.dtype("<i8"),
    "oldest_versions": np.dtype("<i8"),
    "newest_versions": np.dtype("<i8"),
    "tokens": np.dtype("<i4"),
    "prompt_lengths": np.dtype("<i4"),
    "logprobs": np.dtype("<f4"),
    "rewards": np.dtype("<f4"),
    "action_mask": np.dtype("u1"),
    "truncated": np.dtype("u1"),
}
"""The columns in the order of their bytes: wider items first, so that each is aligned to its item size."""
SAFETENSORS_NAMES: Mapping[np.dtype[Any], str] = {
    np.dtype("<i8"): "I64",
    np.dtype("<i4"): "I32",
    np.dtype("<f4"): "F32",
    np.dtype("u1"): "U8",
}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 64 << 10
"""Nine entries take under 1 KiB; a larger header is an attack on the JSON parser, not data."""
SHOWN_CHARACTERS = 40
"""Of a peer's text in our error messages: details travel in gRPC metadata, which is limited to 8 KiB."""
_TEMPLATE = ",".join(
    f'"{name}":{{"dtype":"{SAFETENSORS_NAMES[dtype]}","shape":[%d],"data_offsets":[%d,%d]}}'
    for name, dtype in DTYPES.items()
)
_CANONICAL = re.compile(re.escape(f"{{{_TEMPLATE}}}").replace("%d", "(0|[1-9][0-9]{0,17})").encode() + b" *")
"""Headers as `build_header` writes them: read ten times as fast as any other JSON."""

Column = npt.NDArray[Any]


def build_header(sizes: Mapping[str, int]) -> bytes:
    """Length and JSON of the header for columns of so many items, which follow it in the order of `DTYPES`."""
    numbers: list[int] = []
    offset = 0
    for name, dtype in DTYPES.items():
        end = offset + sizes[name] * dtype.itemsize
        numbers += (sizes[name], offset, end)
        offset = end
    text = f"{{{_TEMPLATE % tuple(numbers)}}}".encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def parse_header(data: memoryview) -> dict[str, Column]:
    """The columns as views of `data` (uint8, 8-byte aligned): known names, dtypes and one dimension, no gap, no overlap.

    Raises LimitExceeded for a header above `MAX_HEADER_BYTES`, MalformedData for anything else that is wrong.
    """
    start = LENGTH_BYTES + _header_length(data)
    canonical = _canonical_columns(data, start)
    if canonical is not None:
        return canonical
    spans = _spans(bytes(data[LENGTH_BYTES:start]))
    position = 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != position:
            raise MalformedData(f"column {name} starts at byte {begin}, expected {position}")
        if begin % DTYPES[name].itemsize:
            raise MalformedData(f"column {name} starts at byte {begin}, not aligned to its items")
        position = end
    if position != len(data) - start:
        raise MalformedData(f"the columns have {position} bytes, the data {len(data) - start}")
    return {
        name: np.frombuffer(data[start + begin : start + end], DTYPES[name]) for name, (begin, end) in spans.items()
    }


def _canonical_columns(data: memoryview, start: int) -> dict[str, Column] | None:
    """The columns where the header is as we write it, down to the byte; None for any other, good or bad."""
    match = _CANONICAL.fullmatch(data, LENGTH_BYTES, start)
    if match is None:
        return None
    numbers = map(int, match.groups())
    columns: dict[str, Column] = {}
    position = 0
    for (name, dtype), size, begin, end in zip(DTYPES.items(), numbers, numbers, numbers, strict=False):
        if begin != position or end != begin + size * dtype.itemsize or end > len(data) - start:
            return None
        columns[name] = np.frombuffer(data, dtype, size, start + begin)
        position = end
    return columns if position == len(data) - start else None


def _spans(text: bytes) -> dict[str, tuple[int, int]]:
    """First byte and end of each column, of any JSON. Raises MalformedData."""
    entries = _load_json(text)
    if entries.keys() != DTYPES.keys():
        odd = ", ".join(sorted(shown(name) for name in entries.keys() ^ DTYPES.keys())[: len(DTYPES)])
        raise MalformedData(f"unknown or missing columns: {odd}")
    return {name: _span(name, entry) for name, entry in entries.items()}


def _header_length(data: memoryview) -> int:
    if len(data) < LENGTH_BYTES:
        raise MalformedData(f"a columnar batch of {len(data)} bytes has no header")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise LimitExceeded(f"the header of a columnar batch claims {length} bytes, the limit is {MAX_HEADER_BYTES}")
    if length % LENGTH_BYTES or length > len(data) - LENGTH_BYTES:
        raise MalformedData(f"the header of a columnar batch claims {length} of {len(data)} bytes")
    return length


def _load_json(text: bytes) -> dict[str, object]:
    try:
        entries = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise MalformedData(f"the header of a columnar batch is no JSON: {shown(str(error))}") from error
    if not isinstance(entries, dict):
        raise MalformedData("the header of a columnar batch is no JSON object")
    return entries


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise MalformedData("the header of a columnar batch has a key twice")
    return unique


def _span(name: str, entry: object) -> tuple[int, int]:
    """First byte and end of the column, consistent with its shape; not yet with the other columns."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedData(f"the header's entry of column {name} needs dtype, shape and data_offsets")
    dtype = DTYPES[name]
    if entry["dtype"] != SAFETENSORS_NAMES[dtype]:
        raise MalformedData(f"column {name} has dtype {shown(entry['dtype'])}, not {SAFETENSORS_NAMES[dtype]}")
    (size,) = _counts(name, "shape", entry["shape"], 1)
    begin, end = _counts(name, "data_offsets", entry["data_offsets"], 2)
    if end - begin != size * dtype.itemsize:
        raise MalformedData(f"column {name} with {size} items lies at bytes {begin} to {end}")
    return begin, end


def _counts(name: str, key: str, value: object, length: int) -> list[int]:
    # bool is a subclass of int, and JSON's 1.0 is a float: only plain integers count.
    if (
        not isinstance(value, list)
        or len(value) != length
        or not all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    ):
        raise MalformedData(f"column {name} has {key} {shown(value)}, expected {length} non-negative integers")
    return value


def shown(value: object) -> str:
    """What an error message shows of a peer's value: escaped and cut."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
