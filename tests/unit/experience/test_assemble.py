"""From received groups to the tensors of a train step."""

import torch

from common.config.root import LimitsConfig
from common.experience.columns import Columns, decode, encode
from common.experience.received import ReceivedGroup
from tests.support.experience_samples import experience, two_experiences
from trainer_service.buffer.assemble import assemble


def received(columns: Columns, ordinal: int) -> ReceivedGroup:
    return ReceivedGroup("task", ordinal, "explorer-0", 1, 1, 1, columns)


def test_groups_are_packed_one_after_the_other() -> None:
    first = decode(encode(Columns.from_experiences(two_experiences())), LimitsConfig())
    second = Columns.from_experiences([experience([1, 2, 3], 1, mask=[0, 1], logprobs=[0, -3], reward=2)])
    batch = assemble([received(first, 0), received(second, 1)], temperature=0.7)
    expected = {
        "tokens": torch.tensor([5, 9, 2, 7, 8, 1, 4, 3, 2, 1, 1, 2, 3], dtype=torch.int32),
        "token_offsets": torch.tensor([0, 6, 10, 13]),
        "prompt_lengths": torch.tensor([3, 2, 1]),
        "action_mask": torch.tensor([True, False, True, True, True, False, True]),
        "logprobs": torch.tensor([-0.25, 0, -2, -1, -0.5, 0, -3]),
        "rewards": torch.tensor([0.5, -1, 2]),
        "group_index": torch.tensor([0, 0, 1]),
    }
    for name, tensor in expected.items():
        assert getattr(batch, name).dtype == tensor.dtype, name
        assert torch.equal(getattr(batch, name), tensor), name
    assert batch.temperature == 0.7


def test_the_tensors_of_a_single_group_do_not_alias_received_bytes() -> None:
    data = encode(Columns.from_experiences(two_experiences()))
    before = bytes(bytearray(data))
    batch = assemble([received(decode(data, LimitsConfig()), 0)], temperature=1.0)
    for name in ("tokens", "token_offsets", "prompt_lengths", "action_mask", "logprobs", "rewards"):
        getattr(batch, name).zero_()
    assert data == before
