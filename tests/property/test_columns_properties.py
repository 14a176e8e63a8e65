"""Properties of columnar batches, over random experiences and random damage."""

import numpy as np
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.root import LimitsConfig
from common.errors import LimitExceeded, MalformedData
from common.experience.columns import Columns, concat, decode, encode
from common.experience.experience import Experience

LIMITS = LimitsConfig()
FIELDS = Columns.__slots__


@st.composite
def experiences(draw: st.DrawFn) -> Experience:
    prompt = draw(st.integers(1, 5))
    responses = draw(st.integers(1, 6))
    mask = draw(st.lists(st.integers(0, 1), min_size=responses, max_size=responses))
    logprobs = draw(st.lists(st.floats(-100, 0, width=32), min_size=responses, max_size=responses))
    oldest = draw(st.integers(0, 1 << 40))
    length = prompt + responses
    return Experience(
        tokens=np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)), np.int32),
        prompt_length=prompt,
        action_mask=np.array(mask, np.uint8),
        logprobs=np.array(logprobs, np.float32) * np.array(mask, np.float32),
        reward=draw(st.floats(-1e6, 1e6, width=32)),
        oldest_version=oldest,
        newest_version=oldest + draw(st.integers(0, 3)),
        truncated=draw(st.booleans()),
    )


batches = st.lists(experiences(), min_size=1, max_size=6)


def assert_same(ours: Columns, theirs: Columns) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


@settings(deadline=None)
@given(batches)
def test_decode_inverts_encode_and_the_library_agrees(batch: list[Experience]) -> None:
    data = encode(Columns.from_experiences(batch))
    columns = decode(data, LIMITS)
    opened = safetensors.numpy.load(data)
    for index, (ours, original) in enumerate(zip(columns.to_experiences(), batch, strict=True)):
        start, end = opened["token_offsets"][index : index + 2]
        assert opened["tokens"][start:end].tolist() == ours.tokens.tolist() == original.tokens.tolist()
        assert ours.action_mask.tolist() == original.action_mask.tolist()
        assert ours.logprobs.tolist() == original.logprobs.tolist()
        assert ours.prompt_length == original.prompt_length
        assert ours.reward == original.reward
        assert (ours.oldest_version, ours.newest_version) == (original.oldest_version, original.newest_version)
        assert ours.truncated == original.truncated


@settings(deadline=None)
@given(batches, st.data())
def test_slices_concatenated_are_the_whole(batch: list[Experience], data: st.DataObject) -> None:
    columns = Columns.from_experiences(batch)
    cut = data.draw(st.integers(1, len(batch)))
    parts = [columns.slice(0, cut), *([columns.slice(cut, len(batch))] if cut < len(batch) else [])]
    assert_same(concat(parts), columns)


@settings(deadline=None)
@given(batches, st.data())
def test_select_is_a_list_index_an_experience(batch: list[Experience], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=8))
    assert_same(
        Columns.from_experiences(batch).select(indices), Columns.from_experiences([batch[index] for index in indices])
    )


@settings(deadline=None)
@given(batches, st.data())
def test_damaged_bytes_raise_a_typed_error_or_still_satisfy_every_promise(
    batch: list[Experience], data: st.DataObject
) -> None:
    damaged = bytearray(encode(Columns.from_experiences(batch)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        columns = decode(bytes(damaged), LIMITS)
    except (MalformedData, LimitExceeded):
        return
    # What passes can be taken apart again without an error, and made again.
    assert_same(Columns.from_experiences(columns.to_experiences()), columns)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_typed_errors(data: bytes) -> None:
    try:
        decode(data, LIMITS)
    except (MalformedData, LimitExceeded):
        return
    raise AssertionError("random bytes were taken for experiences")
