"""Batches of experiences: our types to messages and back."""

from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from common.config.root import LimitsConfig
from common.errors import CorruptData, LimitExceeded, MalformedData, TandemError
from common.experience.experience import ExperienceGroup
from common.experience.received import ExperienceText
from common.wire.experiences import batch_from_proto, batch_to_proto, batch_to_wire, received_to_proto
from protos.tandem.v1 import experience_pb2
from tests.support.experience_samples import experience, group, two_experiences

LIMITS = LimitsConfig()


def groups() -> list[ExperienceGroup]:
    third = experience([6, 6, 6], 1, oldest=7, newest=8, prompt_text="2+2=", response_text="4")
    return [
        group("sums/1", 4, two_experiences(), explore_step=2, run_epoch=3, metrics={"turns": 1.5}, failed_rollouts=1),
        group("sums/2", 3, [third]),
    ]


def message() -> experience_pb2.ExperienceBatch:
    return batch_to_proto("explorer-0", 9, groups(), send_text=True)


def test_a_batch_survives_the_wire() -> None:
    sent = experience_pb2.ExperienceBatch.FromString(message().SerializeToString())
    batch = batch_from_proto(sent, LIMITS)
    assert (batch.explorer_id, batch.sequence) == ("explorer-0", 9)
    first, second = batch.groups
    assert (first.task_id, first.ordinal, first.explore_step, first.run_epoch) == ("sums/1", 4, 2, 3)
    assert (first.explorer_id, first.sequence) == ("explorer-0", 9)
    assert first.metrics == {"turns": 1.5}
    assert first.failed_rollouts == 1
    assert first.oldest_version == 3
    assert first.columns.tokens.tolist() == [5, 9, 2, 7, 8, 1, 4, 3, 2, 1]
    assert first.columns.token_offsets.tolist() == [0, 6, 10]
    assert first.texts == (ExperienceText("", ""), ExperienceText("", ""))
    assert (second.task_id, second.ordinal, second.explore_step, second.run_epoch) == ("sums/2", 3, 1, 1)
    assert second.columns.tokens.tolist() == [6, 6, 6]
    assert second.columns.token_offsets.tolist() == [0, 3]
    assert second.columns.logprobs.tolist() == [-0.5, -0.5]
    assert second.oldest_version == 7
    assert second.texts == (ExperienceText("2+2=", "4"),)


def test_a_received_batch_can_be_kept_and_read_again() -> None:
    original = message()
    kept = received_to_proto(batch_from_proto(original, LIMITS))
    assert kept == original


def test_text_stays_home_unless_asked_for() -> None:
    quiet = batch_to_proto("explorer-0", 1, groups(), send_text=False)
    assert all(not entry.texts for entry in quiet.groups)
    assert batch_from_proto(quiet, LIMITS).groups[1].texts == ()


def test_a_groups_columns_are_views_of_the_message() -> None:
    batch = batch_from_proto(message(), LIMITS)
    first, second = (entry.columns.tokens for entry in batch.groups)
    assert not first.flags.owndata
    assert not first.flags.writeable
    assert second.ctypes.data - first.ctypes.data == 10 * 4
    assert isinstance(first.base, np.ndarray)


def test_a_flipped_bit_is_data_loss_not_malformed_data() -> None:
    corrupt = message()
    data = bytearray(corrupt.columns)
    data[-1] ^= 1
    corrupt.columns = bytes(data)
    with pytest.raises(CorruptData, match="batch 9"):
        batch_from_proto(corrupt, LIMITS)


def replace_columns(batch: experience_pb2.ExperienceBatch, data: bytes) -> None:
    batch.columns = data
    batch.columns_xxh3 = xxhash.xxh3_64_intdigest(data)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda batch: batch.groups[0].ClearField("experience_count"), MalformedData),
        (lambda batch: setattr(batch.groups[0], "experience_count", 3), MalformedData),
        (lambda batch: setattr(batch.groups[0], "experience_count", 2**32 - 1), MalformedData),
        (lambda batch: setattr(batch.groups[0], "ordinal", 3), MalformedData),
        (lambda batch: batch.groups.add(experience_count=0, ordinal=9), MalformedData),
        (lambda batch: batch.ClearField("groups"), MalformedData),
        (lambda batch: batch.groups[0].texts.add(), MalformedData),
        (lambda batch: batch.ClearField("sequence"), MalformedData),
        (lambda batch: batch.ClearField("explorer_id"), MalformedData),
        (lambda batch: setattr(batch, "explorer_id", "../etc"), MalformedData),
        (lambda batch: setattr(batch, "explorer_id", "x" * 100_000), MalformedData),
        (lambda batch: replace_columns(batch, b""), MalformedData),
        (lambda batch: replace_columns(batch, b"\xff" * 64), LimitExceeded),
        (lambda batch: batch.groups.extend([batch.groups[0]] * 8192), LimitExceeded),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(
    change: Callable[[experience_pb2.ExperienceBatch], object], error: type[TandemError]
) -> None:
    bad = message()
    change(bad)
    with pytest.raises(error) as caught:
        batch_from_proto(bad, LIMITS)
    assert len(caught.value.message) < 1000


def test_a_group_without_experiences_is_not_sent() -> None:
    with pytest.raises(MalformedData, match="sums/3"):
        batch_to_proto("explorer-0", 1, [*groups(), group("sums/3", 5, [])], send_text=False)


def test_the_wire_bytes_are_those_of_the_message() -> None:
    wire = batch_to_wire("explorer-0", 9, groups(), send_text=True)
    assert experience_pb2.ExperienceBatch.FromString(wire) == message()
