import dataclasses

import pytest
import torch

from common.errors import MalformedData
from tests.support.train_batches import VOCABULARY, make_batch, random_batch
from trainer_service.engine.packing import micro_batches, pack

# Prompts of 2 and 1 tokens; the response tokens 12 and 21 come from an environment.
BATCH = make_batch(
    [((3, 4), (11, 12, 13)), ((5,), (14, 2))], masks=[[1, 0, 1], [1, 0]], logprobs=[[-1, -9, -2], [-3, -9]]
)


def test_action_tokens_are_found_by_hand() -> None:
    packed = pack(BATCH, VOCABULARY)
    assert packed.sequence.tolist() == [0, 0, 1]
    assert packed.position.tolist() == [2, 4, 1]
    assert packed.action_starts.tolist() == [0, 2, 3]
    assert packed.behaviour_logprobs.tolist() == [-1, -2, -3]


def test_one_micro_batch_by_hand() -> None:
    (micro,) = micro_batches(pack(BATCH, VOCABULARY), torch.arange(2), 100)
    # Last tokens are no input; the second sequence is padded with 0.
    assert micro.input_ids.tolist() == [[3, 4, 11, 12], [5, 14, 0, 0]]
    assert micro.rows.tolist() == [1, 3, 4]
    assert micro.targets.tolist() == [11, 13, 14]
    assert micro.index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("budget", [1, 7, 12, 30, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_micro_batches_cover_each_action_token_once_within_the_budget(budget: int, seed: int) -> None:
    batch = random_batch(seed, count=23)
    packed = pack(batch, VOCABULARY)
    chosen = torch.randperm(23, generator=torch.Generator().manual_seed(seed))[:17]
    seen: list[int] = []
    for micro in micro_batches(packed, chosen, budget):
        assert micro.input_ids.numel() <= budget or micro.input_ids.shape[0] == 1
        flat = micro.input_ids.flatten().tolist()
        for row, target, index in zip(micro.rows.tolist(), micro.targets.tolist(), micro.index.tolist(), strict=True):
            place = int(packed.starts[packed.sequence[index]] + packed.position[index])
            assert batch.tokens[place] == target
            assert batch.tokens[place - 1] == flat[row]
            seen.append(index)
    expected = [index for index, owner in enumerate(packed.sequence.tolist()) if owner in chosen.tolist()]
    assert sorted(seen) == expected


def test_a_sequence_without_action_tokens_is_left_out() -> None:
    batch = make_batch([((3, 4), (11, 12)), ((5,), (14, 2))], masks=[[0, 0], [1, 1]])
    (micro,) = micro_batches(pack(batch, VOCABULARY), torch.arange(2), 100)
    assert micro.input_ids.tolist() == [[5, 14]]
    assert list(micro_batches(pack(batch, VOCABULARY), torch.tensor([0]), 100)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": torch.tensor([3, 4, 11, 12, 13, 5, 14, VOCABULARY], dtype=torch.int32)},
        {"tokens": torch.tensor([3, 4, 11, 12, 13, 5, 14, -1], dtype=torch.int32)},
        {"tokens": BATCH.tokens[:-1]},
        {"prompt_lengths": torch.tensor([0, 1])},
        {"prompt_lengths": torch.tensor([2, 3])},
        {"action_mask": BATCH.action_mask[1:]},
        {"logprobs": BATCH.logprobs[1:]},
        {"rewards": BATCH.rewards[1:]},
        {"token_offsets": torch.tensor([0])},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, torch.Tensor]) -> None:
    with pytest.raises(MalformedData):
        pack(dataclasses.replace(BATCH, **change), VOCABULARY)
