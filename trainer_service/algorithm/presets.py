"""Named algorithms: which parts each one is made of."""

from __future__ import annotations

from dataclasses import dataclass

from common.config.algorithm import AlgorithmConfig
from common.errors import ConfigError
from common.registry import Registry
from trainer_service.algorithm.advantages import ADVANTAGES, Advantage
from trainer_service.algorithm.aggregation import AGGREGATIONS, Aggregation
from trainer_service.algorithm.kl import KL_ESTIMATORS, KlEstimator
from trainer_service.algorithm.policy_losses import POLICY_LOSSES, WITHOUT_BEHAVIOUR, PolicyLoss


@dataclass(frozen=True, slots=True)
class Preset:
    """The parts of a named algorithm, by name."""

    advantage: str
    policy_loss: str
    aggregation: str


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A preset with the configuration's overrides, resolved to functions."""

    config: AlgorithmConfig
    """Numbers of the parts: clipping, coefficients, options."""
    advantage: Advantage
    policy_loss: PolicyLoss
    aggregation: Aggregation
    kl: KlEstimator
    uses_behaviour: bool
    """False where the data has no behaviour logprobs."""
    parts: Preset
    """The names of the parts, for logs."""


PRESETS: Registry[Preset] = Registry("algorithm")
BUILT_IN = {
    # https://arxiv.org/abs/2402.03300
    "grpo": Preset("group_normalized", "ppo_clip", "sequence_mean"),
    # https://arxiv.org/abs/2503.20783: no division by the group's deviation, none by the sequence's length
    "dr_grpo": Preset("group_centered", "ppo_clip", "sequence_sum"),
    # Williams, 1992: the gradient of the expected reward, as it stands
    "reinforce": Preset("reward", "reinforce", "sequence_sum"),
    "sft": Preset("none", "sft", "token_mean"),
}
for _name, _preset in BUILT_IN.items():
    PRESETS.register(_name)(_preset)


def resolve_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that a configuration names. Raises ConfigError naming an unknown part and the known ones."""
    preset = PRESETS.get(config.name)
    parts = Preset(
        config.advantage or preset.advantage,
        config.policy_loss or preset.policy_loss,
        config.aggregation or preset.aggregation,
    )
    if parts.aggregation not in AGGREGATIONS:
        raise ConfigError(f"unknown aggregation {parts.aggregation!r}; known are {', '.join(AGGREGATIONS)}")
    return Algorithm(
        config=config,
        advantage=ADVANTAGES.get(parts.advantage),
        policy_loss=POLICY_LOSSES.get(parts.policy_loss),
        aggregation=AGGREGATIONS[parts.aggregation],
        kl=KL_ESTIMATORS[config.kl.estimator],
        uses_behaviour=parts.policy_loss not in WITHOUT_BEHAVIOUR,
        parts=parts,
    )
