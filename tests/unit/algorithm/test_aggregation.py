import pytest
import torch

from trainer_service.algorithm.aggregation import AGGREGATIONS

# Sequence 0 has 1 action token, sequence 1 none, sequence 2 has 3.
SEQUENCE = torch.tensor([0, 2, 2, 2])


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("token_mean", [1 / 4] * 4),
        ("sequence_mean", [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ("sequence_sum", [1 / 2] * 4),
    ],
)
def test_weights_by_hand_where_a_sequence_without_action_tokens_does_not_count(name: str, weights: list[float]) -> None:
    result = AGGREGATIONS[name](SEQUENCE)
    assert result.dtype == torch.float32
    assert result.tolist() == pytest.approx(weights)


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_nothing_to_aggregate_gives_nothing(name: str) -> None:
    assert AGGREGATIONS[name](torch.zeros(0, dtype=torch.int64)).tolist() == []
