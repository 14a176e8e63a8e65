import math

import pytest
import torch

from common.config.algorithm import AlgorithmConfig
from common.errors import ConfigError
from trainer_service.algorithm.advantages import ADVANTAGES

CONFIG = AlgorithmConfig()


def advantages(name: str, rewards: list[float], groups: list[int]) -> list[float]:
    result = ADVANTAGES.get(name)(torch.tensor(rewards), torch.tensor(groups), CONFIG)
    assert result.dtype == torch.float32
    return result.tolist()


def test_normalized_by_hand_with_the_sample_deviation() -> None:
    # mean 2, sample deviation sqrt(((1)^2 + 0 + 1^2) / 2) = 1; the population's would be 0.816
    assert advantages("group_normalized", [1, 2, 3], [0, 0, 0]) == pytest.approx([-1 / 1.0001, 0, 1 / 1.0001])


def test_centered_by_hand() -> None:
    assert advantages("group_centered", [1, 0, 0, 1, 5], [0, 0, 0, 0, 1]) == pytest.approx([0.5, -0.5, -0.5, 0.5, 0])


@pytest.mark.parametrize("name", ["group_normalized", "group_centered"])
def test_a_group_of_one_or_of_equal_rewards_has_advantage_exactly_zero(name: str) -> None:
    assert advantages(name, [0.1] * 7 + [12345.678], [0] * 7 + [1]) == [0.0] * 8


@pytest.mark.parametrize("name", ["group_normalized", "group_centered"])
def test_interleaved_groups_match_plain_loops_in_float64(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards = (torch.randn(40, generator=generator) * 3).tolist()
    groups = torch.randint(0, 6, (40,), generator=generator).tolist()
    expected = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [other for other, its in zip(rewards, groups, strict=True) if its == group]
        mean = sum(members) / len(members)
        variance = sum((member - mean) ** 2 for member in members) / (len(members) - 1)
        expected.append((reward - mean) / (math.sqrt(variance) + 1e-4 if name == "group_normalized" else 1))
    assert advantages(name, rewards, groups) == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_a_nan_reward_stays_in_its_group() -> None:
    result = advantages("group_normalized", [float("nan"), 1, 1, 2], [0, 0, 1, 1])
    assert all(math.isnan(value) for value in result[:2])
    assert result[2:] == pytest.approx([-0.5 / (math.sqrt(0.5) + 1e-4), 0.5 / (math.sqrt(0.5) + 1e-4)])


def test_without_a_baseline() -> None:
    assert advantages("reward", [2, -1], [0, 0]) == [2, -1]
    assert advantages("none", [2, -1], [0, 0]) == [1, 1]


def test_an_unknown_advantage_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"group_normalised.*group_centered.*Did you mean 'group_normalized'"):
        ADVANTAGES.get("group_normalised")
