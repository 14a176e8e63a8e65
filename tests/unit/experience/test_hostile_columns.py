"""Columnar bytes from a hostile or broken peer: refused with a typed error, before memory is taken."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from common.config.root import LimitsConfig
from common.errors import LimitExceeded, MalformedData
from common.experience.columns import Columns, decode, encode
from tests.support.experience_samples import two_experiences

LIMITS = LimitsConfig()
Header = dict[str, Any]


def image(header: str | bytes, body: bytes) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def valid() -> tuple[Header, bytes]:
    data = encode(Columns.from_experiences(two_experiences()))
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def drop(name: str) -> Callable[[Header], object]:
    return lambda header: header.pop(name)


def put(name: str, key: str, value: object) -> Callable[[Header], object]:
    return lambda header: header[name].__setitem__(key, value)


@pytest.mark.parametrize(
    "change",
    [
        drop("tokens"),
        lambda header: header.update(extra=header["tokens"]),
        lambda header: header.update(__metadata__={"format": "pt"}),
        lambda header: header.update(tokens=None),
        lambda header: header["tokens"].update(more=1),
        put("tokens", "dtype", "I64"),
        put("tokens", "dtype", "F32"),
        put("tokens", "dtype", ["I32"]),
        put("tokens", "shape", [11]),
        put("tokens", "shape", [2, 5]),
        put("tokens", "shape", []),
        put("tokens", "shape", [-10]),
        put("tokens", "shape", [10.0]),
        put("tokens", "shape", [True]),
        put("tokens", "shape", "10"),
        put("tokens", "shape", [1 << 70]),
        put("tokens", "data_offsets", [0, 40]),
        put("tokens", "data_offsets", [60, 100]),
        put("tokens", "data_offsets", [64, 24]),
        put("tokens", "data_offsets", [-8, 32]),
        put("tokens", "data_offsets", [64]),
        put("truncated", "data_offsets", [1 << 40, (1 << 40) + 2]),
    ],
)
def test_a_header_that_lies_is_refused(change: Callable[[Header], object]) -> None:
    header, body = valid()
    change(header)
    with pytest.raises(MalformedData):
        decode(image(json.dumps(header), body), LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08",
        b"\xff" * 8,
        (16).to_bytes(8, "little") + b"{}",
        image("", b""),
        image("[]", b""),
        image("1", b""),
        image("{" * 1000, b""),
        image("[" * 60_000, b""),
        image('{"a":' * 10_000, b""),
        image("1" * 60_000, b""),
        image(b"\xff\xfe", b""),
        image('{"tokens":{},"tokens":{}}', b""),
        image('{"tokens":{"dtype":"I32","dtype":"I32"}}', b""),
        image('{"\\ud800":{}}', b""),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises((MalformedData, LimitExceeded)) as caught:
        decode(data, LIMITS)
    # It travels in gRPC metadata, which is limited to 8 KiB.
    assert len(caught.value.message.encode()) < 1000


def test_a_column_that_is_not_aligned_is_refused() -> None:
    header, body = valid()
    # The uint8 `truncated` (2 bytes, at the end) first: all wider columns then start at odd multiples of 2.
    moved = {name: dict(entry) for name, entry in header.items()}
    for entry in moved.values():
        entry["data_offsets"] = [offset + 2 for offset in entry["data_offsets"]]
    moved["truncated"]["data_offsets"] = [0, 2]
    with pytest.raises(MalformedData, match="aligned"):
        decode(image(json.dumps(moved), body[-2:] + body[:-2]), LIMITS)


def test_missing_and_trailing_bytes_are_refused() -> None:
    header, body = valid()
    for wrong in (body[:-1], body + b"\0"):
        with pytest.raises(MalformedData, match="bytes"):
            decode(image(json.dumps(header), wrong), LIMITS)


def test_a_huge_header_is_refused_unread() -> None:
    # A million empty tensors took the safetensors library 20 s and 2 GB.
    entries = ",".join(f'"t{index}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for index in range(100_000))
    data = image("{" + entries + "}", b"")
    with pytest.raises(LimitExceeded, match="65536"):
        decode(data, LIMITS)


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("token_offsets", 0, 1),
        ("token_offsets", 1, 11),
        ("token_offsets", 1, -(1 << 63)),
        ("token_offsets", 2, 9),
        ("token_offsets", 1, 10),
        ("prompt_lengths", 0, 0),
        ("prompt_lengths", 0, -(1 << 31)),
        ("prompt_lengths", 0, 6),
        ("prompt_lengths", 0, 2),
        ("tokens", 3, -1),
        ("action_mask", 1, 2),
        ("truncated", 0, 255),
        ("logprobs", 0, np.nan),
        ("logprobs", 0, np.inf),
        ("logprobs", 0, -np.inf),
        ("logprobs", 0, 0.01),
        ("rewards", 1, np.nan),
        ("rewards", 1, np.inf),
        ("oldest_versions", 0, -1),
        ("oldest_versions", 0, 5),
    ],
)
def test_an_impossible_value_is_refused(name: str, index: int, value: float) -> None:
    columns = Columns.from_experiences(two_experiences())
    getattr(columns, name)[index] = value
    with pytest.raises(MalformedData):
        decode(encode(columns), LIMITS)


@pytest.mark.parametrize("name", ["prompt_lengths", "oldest_versions", "truncated", "token_offsets", "logprobs"])
def test_columns_of_unequal_length_are_refused(name: str) -> None:
    columns = Columns.from_experiences(two_experiences())
    arrays = {field: getattr(columns, field) for field in Columns.__slots__}
    arrays[name] = arrays[name][:-1]
    with pytest.raises(MalformedData):
        decode(encode(Columns(**arrays)), LIMITS)


def test_an_empty_batch_is_refused() -> None:
    columns = Columns.from_experiences(two_experiences())
    arrays = {field: getattr(columns, field)[:0] for field in Columns.__slots__}
    arrays["token_offsets"] = np.zeros(1, np.int64)
    with pytest.raises(MalformedData, match="without experiences"):
        decode(encode(Columns(**arrays)), LIMITS)


def test_limits_hold_at_their_edge() -> None:
    data = encode(Columns.from_experiences(two_experiences()))
    assert decode(data, LimitsConfig(batch_experiences=2, experience_tokens=6)).experience_count == 2
    with pytest.raises(LimitExceeded, match=r"limits\.batch_experiences is 1"):
        decode(data, LimitsConfig(batch_experiences=1))
    with pytest.raises(LimitExceeded, match=r"limits\.experience_tokens is 5"):
        decode(data, LimitsConfig(experience_tokens=5))


def test_rounding_above_zero_is_no_error() -> None:
    columns = Columns.from_experiences(two_experiences())
    columns.logprobs[0] = 2e-6
    assert decode(encode(columns), LIMITS).logprobs[0] == np.float32(2e-6)
