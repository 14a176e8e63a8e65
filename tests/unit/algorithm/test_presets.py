import dataclasses

import pytest
import torch

from common.config.algorithm import AlgorithmConfig
from common.errors import ConfigError
from trainer_service.algorithm import advantages, policy_losses
from trainer_service.algorithm.presets import PRESETS, Preset, resolve_algorithm


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("grpo", Preset("group_normalized", "ppo_clip", "sequence_mean")),
        ("dr_grpo", Preset("group_centered", "ppo_clip", "sequence_sum")),
        ("reinforce", Preset("reward", "reinforce", "sequence_sum")),
        ("sft", Preset("none", "sft", "token_mean")),
    ],
)
def test_a_preset_is_made_of_its_parts(name: str, parts: Preset) -> None:
    algorithm = resolve_algorithm(AlgorithmConfig(name=name))
    assert algorithm.parts == parts
    assert algorithm.uses_behaviour == (name != "sft")


def test_overrides_replace_single_parts() -> None:
    algorithm = resolve_algorithm(AlgorithmConfig(name="grpo", advantage="group_centered", aggregation="token_mean"))
    assert algorithm.parts == Preset("group_centered", "ppo_clip", "token_mean")
    assert algorithm.advantage is advantages.group_centered
    assert algorithm.policy_loss is policy_losses.ppo_clip


@pytest.mark.parametrize("key", ["name", "advantage", "policy_loss"])
def test_an_unknown_part_is_refused_with_the_known_ones(key: str) -> None:
    with pytest.raises(ConfigError, match="known are"):
        resolve_algorithm(AlgorithmConfig.model_validate({key: "nonsense"}))


def test_a_plugin_adds_parts_and_presets() -> None:
    @advantages.ADVANTAGES.register("test_best_of_group")
    def best(rewards: torch.Tensor, group_index: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:
        return (rewards >= config.options["threshold"]).float()

    PRESETS.register("test_preset")(Preset("test_best_of_group", "reinforce", "token_mean"))
    algorithm = resolve_algorithm(AlgorithmConfig(name="test_preset", options={"threshold": 2}))
    assert algorithm.advantage(torch.tensor([1.0, 2.0]), torch.tensor([0, 0]), algorithm.config).tolist() == [0, 1]


def test_an_algorithm_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve_algorithm(AlgorithmConfig()).uses_behaviour = False
