"""Columnar batches: what the arrays hold, and that their bytes are a safetensors file."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from common.config.root import LimitsConfig
from common.errors import MalformedData
from common.experience.columns import Columns, concat, decode, encode
from tests.support.experience_samples import experience, two_experiences

LIMITS = LimitsConfig()
DTYPES = {
    "tokens": np.int32,
    "token_offsets": np.int64,
    "prompt_lengths": np.int32,
    "action_mask": np.uint8,
    "logprobs": np.float32,
    "rewards": np.float32,
    "oldest_versions": np.int64,
    "newest_versions": np.int64,
    "truncated": np.uint8,
}
BY_HAND = {
    "tokens": [5, 9, 2, 7, 8, 1, 4, 3, 2, 1],
    "token_offsets": [0, 6, 10],
    "prompt_lengths": [3, 2],
    "action_mask": [1, 0, 1, 1, 1],
    "logprobs": [-0.25, 0, -2, -1, -0.5],
    "rewards": [0.5, -1],
    "oldest_versions": [3, 4],
    "newest_versions": [4, 4],
    "truncated": [0, 1],
}


def assert_columns(columns: Columns, expected: dict[str, list[float]]) -> None:
    for name, dtype in DTYPES.items():
        array = getattr(columns, name)
        assert array.dtype == dtype
        assert array.tolist() == expected[name], name


def test_columns_hold_what_the_contract_says() -> None:
    columns = Columns.from_experiences(two_experiences())
    assert_columns(columns, BY_HAND)
    assert columns.experience_count == 2
    assert columns.response_offsets.tolist() == [0, 3, 5]


def test_decode_returns_what_encode_was_given() -> None:
    assert_columns(decode(encode(Columns.from_experiences(two_experiences())), LIMITS), BY_HAND)


def test_the_safetensors_library_opens_the_bytes() -> None:
    opened = safetensors.numpy.load(encode(Columns.from_experiences(two_experiences())))
    assert {name: array.tolist() for name, array in opened.items()} == BY_HAND
    assert {name: array.dtype for name, array in opened.items()} == DTYPES


def test_bytes_that_the_safetensors_library_wrote_decode() -> None:
    arrays = {name: np.array(BY_HAND[name], dtype) for name, dtype in DTYPES.items()}
    assert_columns(decode(safetensors.numpy.save(arrays), LIMITS), BY_HAND)


def test_every_column_is_aligned_to_its_items() -> None:
    data = encode(Columns.from_experiences(two_experiences()))
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        assert entry["data_offsets"][0] % np.dtype(DTYPES[name]).itemsize == 0


def test_decode_copies_nothing() -> None:
    data = encode(Columns.from_experiences(two_experiences()))
    columns = decode(data, LIMITS)
    memory = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(memory, getattr(columns, name)) for name in DTYPES)


def test_bytes_at_an_odd_address_decode_without_a_copy() -> None:
    data = b"\0" + encode(Columns.from_experiences(two_experiences()))
    columns = decode(memoryview(data)[1:], LIMITS)
    assert_columns(columns, BY_HAND)
    memory = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(memory, getattr(columns, name)) for name in DTYPES)


def test_joined_columns_are_aligned_wherever_their_parts_lay() -> None:
    data = b"\0" + encode(Columns.from_experiences(two_experiences()))
    joined = concat(list(decode(memoryview(data)[1:], LIMITS).split([1, 1])))
    assert_columns(joined, BY_HAND)
    assert all(getattr(joined, name).flags.aligned for name in DTYPES)


def test_experiences_come_back_one_by_one() -> None:
    returned = Columns.from_experiences(two_experiences()).to_experiences()
    for ours, theirs in zip(returned, two_experiences(), strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.action_mask.tolist() == theirs.action_mask.tolist()
        assert ours.logprobs.tolist() == theirs.logprobs.tolist()
        for name in ("prompt_length", "reward", "oldest_version", "newest_version", "truncated"):
            assert getattr(ours, name) == getattr(theirs, name)


def test_a_slice_starts_its_offsets_at_zero_and_views_the_rest() -> None:
    columns = Columns.from_experiences([experience([1, 2, 3], 1), *two_experiences()])
    part = columns.slice(1, 3)
    assert_columns(part, BY_HAND)
    assert np.shares_memory(part.tokens, columns.tokens)
    assert np.shares_memory(part.logprobs, columns.logprobs)


def test_concat_joins_ragged_parts() -> None:
    first, second = two_experiences()
    joined = concat([Columns.from_experiences([first]), Columns.from_experiences([second])])
    assert_columns(joined, BY_HAND)


def test_select_gathers_in_the_order_asked_for() -> None:
    columns = Columns.from_experiences(two_experiences())
    chosen = columns.select([1, 0, 1])
    assert chosen.tokens.tolist() == [4, 3, 2, 1, 5, 9, 2, 7, 8, 1, 4, 3, 2, 1]
    assert chosen.token_offsets.tolist() == [0, 4, 10, 14]
    assert chosen.logprobs.tolist() == [-1, -0.5, -0.25, 0, -2, -1, -0.5]
    assert chosen.rewards.tolist() == [-1, 0.5, -1]


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (experience([1, 2, 3], 1, reward=math.nan), "reward is not finite"),
        (experience([1, 2, 3], 1, mask=[1]), "1 items of action_mask"),
        (experience([1, 2, 3], 1, logprobs=[-1.0, math.nan]), "not finite"),
        (experience([1, 2, 3], 3, mask=[], logprobs=[]), "prompt_length"),
        (experience([1, 2, 3], 1, oldest=5, newest=4), "newest_version"),
    ],
)
def test_what_the_other_side_would_refuse_is_refused_before_it_is_sent(bad: object, match: str) -> None:
    with pytest.raises(MalformedData, match=match):
        Columns.from_experiences([*two_experiences(), bad])


def test_mask_errors_of_two_experiences_do_not_cancel_out() -> None:
    long = experience([1, 2, 3], 1, mask=[1, 1, 1], logprobs=[-1, -1, -1])
    short = experience([1, 2, 3], 1, mask=[1], logprobs=[-1])
    with pytest.raises(MalformedData, match="experience 0"):
        Columns.from_experiences([long, short])


def test_no_experiences_are_no_batch() -> None:
    with pytest.raises(MalformedData, match="without experiences"):
        Columns.from_experiences([])


def test_rows_with_gaps_between_their_items_are_joined_by_value() -> None:
    first, second = two_experiences()
    spread = np.zeros(2 * first.tokens.size, np.int32)
    spread[::2] = first.tokens
    columns = Columns.from_experiences([replace(first, tokens=spread[::2]), second])
    assert_columns(columns, BY_HAND)


def test_narrower_integers_are_widened() -> None:
    first, second = two_experiences()
    columns = Columns.from_experiences([replace(first, tokens=first.tokens.astype(np.int16)), second])
    assert_columns(columns, BY_HAND)
