import json
from typing import Any

import pytest

from common.checkpoint import safetensors_header
from common.checkpoint.safetensors_header import MAX_HEADER_BYTES, header_length, parse_header
from common.errors import LimitExceeded, MalformedData, TandemError


def tensor(begin: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def parse(document: object, data_bytes: int = 8, max_tensors: int = 10) -> list[str]:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return [entry.name for entry in parse_header(text, data_bytes, max_tensors=max_tensors)[0]]


def test_tensors_come_in_the_order_of_their_bytes() -> None:
    assert parse({"a": tensor(4, 8), "b": tensor(0, 4), "__metadata__": {"k": "v"}}) == ["b", "a"]


HOSTILE: dict[str, object] = {
    "no json": b"{",
    "not utf-8": b'{"\xff":1}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "list": [],
    "number": 3,
    "deep": b"[" * 1100,
    "long number": b'{"a":' + b"1" * 10_000 + b"}",
    "duplicate key": b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
    "duplicate in a tensor": b'{"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}}',
    "nan": b'{"a":NaN}',
    "gap at the start": {"a": tensor(1, 8)},
    "gap": {"a": tensor(0, 3), "b": tensor(4, 8)},
    "overlap": {"a": tensor(0, 5), "b": tensor(4, 8)},
    "same bytes twice": {"a": tensor(0, 8), "b": tensor(0, 8)},
    "too short": {"a": tensor(0, 7)},
    "too long": {"a": tensor(0, 9)},
    "no tensor": {},
    "reversed": {"a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}},
    "negative": {"a": {"dtype": "U8", "shape": [-8], "data_offsets": [0, 8]}},
    "negative twice": {"a": tensor(0, 8, [-2, -4])},
    "wrong shape": {"a": tensor(0, 8, [9])},
    "overflow to the right size": {"a": tensor(0, 8, [2**62, 8, 4])},
    "empty but vast": {"a": tensor(0, 8), "b": tensor(8, 8, [0, 2**62, 2**62])},
    "unknown dtype": {"a": tensor(0, 8, dtype="F4")},
    "float offsets": {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0.0, 8.0]}},
    "boolean shape": {"a": {"dtype": "U8", "shape": [True, 8], "data_offsets": [0, 8]}},
    "three offsets": {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8, 8]}},
    "no shape": {"a": {"dtype": "U8", "data_offsets": [0, 8]}},
    "more keys": {"a": {**tensor(0, 8), "x": 1}},
    "dtype no text": {"a": {**tensor(0, 8), "dtype": 3}},
    "nine dimensions": {"a": tensor(0, 8, [1] * 8 + [8])},
    "no name": {"": tensor(0, 8)},
    "long name": {"n" * 513: tensor(0, 8)},
    "NUL in the name": {"a\0": tensor(0, 8)},
    "half a surrogate pair": b'{"\\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
    "remarks no texts": {"a": tensor(0, 8), "__metadata__": {"k": 1}},
    "remarks no map": {"a": tensor(0, 8), "__metadata__": []},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_malformed_and_said_so_in_few_words(case: str) -> None:
    with pytest.raises(MalformedData) as caught:
        parse(HOSTILE[case])
    assert len(caught.value.message) < 1000


def test_a_million_empty_tensors_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = b'"%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    text = b"{" + b",".join(entry % number for number in range(1_000_000)) + b"}"
    monkeypatch.setattr(safetensors_header, "parse_strictly", lambda text: pytest.fail("parsed"))

    with pytest.raises(LimitExceeded, match="58000001 bytes"):
        header_length(len(text).to_bytes(8, "little"), len(text) + 8)
    with pytest.raises(LimitExceeded, match="20000 tensors"):
        parse(text[:MAX_HEADER_BYTES], max_tensors=20_000)


@pytest.mark.parametrize("filler", [b"{", b"[", b"0,", b'{"a":[],'])
def test_whatever_is_slow_to_parse_is_refused_before(monkeypatch: pytest.MonkeyPatch, filler: bytes) -> None:
    monkeypatch.setattr(safetensors_header, "parse_strictly", lambda text: pytest.fail("parsed"))

    with pytest.raises(LimitExceeded):
        parse(b'{"a":' + filler * 1_000_000, max_tensors=20_000)


def test_one_tensor_too_many_is_refused_and_the_last_one_allowed_is_not() -> None:
    document = {f"t{number}": tensor(0, 0) for number in range(10)}

    assert len(parse(document, 0, max_tensors=10)) == 10
    with pytest.raises(LimitExceeded, match="10 tensors"):
        parse(document, 0, max_tensors=9)


def test_the_largest_legal_entries_fit_the_bound_on_marks() -> None:
    document = {f"t{number}": tensor(number, number + 1, [1] * 8) for number in range(2000)}

    assert len(parse(document, 2000, max_tensors=2000)) == 2000


@pytest.mark.parametrize(
    ("prefix", "file_bytes"), [(b"", 0), (b"\x01", 1), ((8).to_bytes(8, "little"), 15), (b"\xff" * 8, 100)]
)
def test_header_lengths_that_lie_are_refused(prefix: bytes, file_bytes: int) -> None:
    with pytest.raises(TandemError):
        header_length(prefix, file_bytes)
