"""Prompts that are computed once give the numbers of plain rows, in every respect."""

from __future__ import annotations

import pytest
import torch

from tests.support.tiny_models import tiny_model
from tests.support.train_batches import VOCABULARY, make_batch
from trainer_service.engine.base import TrainBatch
from trainer_service.engine.logprobs import PolicyHead
from trainer_service.engine.packing import MicroBatch, PackedBatch, micro_batches, pack
from trainer_service.engine.shared_prompts import shared_micro_batches

HIDDEN = 32


def grouped_batch(seed: int, *, shuffled: bool = False) -> TrainBatch:
    """Five prompts of different lengths, three to five ragged responses each, some tokens of which are not trained."""
    random = torch.Generator().manual_seed(seed)

    def tokens(low: int, high: int) -> list[int]:
        count = int(torch.randint(low, high, (1,), generator=random))
        return torch.randint(2, VOCABULARY, (count,), generator=random).tolist()

    sequences = []
    for group in range(5):
        prompt = tokens(4 + group, 12 + group)
        sequences += [(prompt, tokens(1, 7)) for _ in range(3 + group % 3)]
    if shuffled:
        order = torch.randperm(len(sequences), generator=random).tolist()
        sequences = [sequences[place] for place in order]
    masks = [(torch.rand(len(response), generator=random) < 0.8).int().tolist() for _, response in sequences]
    return make_batch(sequences, masks=masks)


def shared(packed: PackedBatch, max_tokens: int = 10_000) -> list[MicroBatch]:
    parts = shared_micro_batches(packed, torch.arange(packed.lengths.numel()), max_tokens, HIDDEN)
    assert parts is not None
    return list(parts)


def logprobs_and_gradient(
    model: torch.nn.Module, micros: list[MicroBatch], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """By each action token's place, and the gradient of a sum with a different weight for each."""
    head = PolicyHead(model)
    found = torch.full((count,), torch.nan, dtype=torch.float64)
    weights = torch.linspace(0.1, 1.0, count)
    model.zero_grad()
    for micro in micros:
        values = head.statistics(micro, 0.7, entropy_gradient=True)
        assert bool(found[micro.index].isnan().all()), "an action token was seen twice"
        found[micro.index] = values.logprobs.detach().double()
        (weights[micro.index] * (values.logprobs + 0.1 * values.entropy)).sum().backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return found, gradient


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma", "gpt2"])
@pytest.mark.parametrize("max_tokens", [40, 10_000])
def test_logprobs_and_gradients_are_those_of_plain_rows(family: str, max_tokens: int) -> None:
    model = tiny_model(family, scale=3.0)
    assert PolicyHead(model).shares_prompts
    packed = pack(grouped_batch(1, shuffled=True), VOCABULARY)
    count = packed.position.numel()
    plain = list(micro_batches(packed, torch.arange(packed.lengths.numel()), 10_000))
    expected, expected_gradient = logprobs_and_gradient(model, plain, count)
    found, gradient = logprobs_and_gradient(model, shared(packed, max_tokens), count)
    assert not found.isnan().any()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5 * float(expected_gradient.abs().max()))


def test_one_row_by_hand() -> None:
    """Prompt 5 6, responses 7 8 9 and 3 4: the row is 5 6 | 7 8 | 3, and what is predicted from where is counted out."""
    packed = pack(make_batch([([5, 6], [7, 8, 9]), ([5, 6], [3, 4])]), VOCABULARY)
    (micro,) = shared(packed)
    assert micro.input_ids.tolist() == [[5, 6, 7, 8, 3]]
    assert micro.position_ids is not None
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 2]]
    assert micro.targets.tolist() == [7, 8, 9, 3, 4]
    assert micro.rows.tolist() == [1, 2, 3, 1, 4]
    assert micro.attention_mask is not None
    assert micro.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_rows_fit_into_the_budget_and_hold_every_action_token_once() -> None:
    packed = pack(grouped_batch(2), VOCABULARY)
    parts = shared(packed, 60)
    assert all(part.input_ids.numel() <= 60 or part.input_ids.shape[0] == 1 for part in parts)
    seen = torch.cat([part.index for part in parts]).sort().values
    assert seen.tolist() == list(range(packed.position.numel()))


def test_long_responses_are_left_in_plain_rows() -> None:
    """Two prompt tokens saved a sequence are not worth a row of 8 x 60 tokens, whose attention grows with the square."""
    packed = pack(make_batch([([5, 6], [7] * 60)] * 8), VOCABULARY)
    assert shared_micro_batches(packed, torch.arange(8), 10_000, hidden_size=16) is None


def test_different_prompts_share_nothing() -> None:
    packed = pack(make_batch([([5, 6], [7, 8]), ([5, 7], [7, 8])]), VOCABULARY)
    assert shared_micro_batches(packed, torch.arange(2), 10_000, HIDDEN) is None


def test_models_that_look_back_over_a_window_keep_plain_rows() -> None:
    assert not PolicyHead(tiny_model("mistral")).shares_prompts
    assert not PolicyHead(tiny_model("gemma3_text")).shares_prompts
