import math

import pytest
import torch

from common.config.algorithm import AlgorithmConfig
from trainer_service.algorithm.policy_losses import POLICY_LOSSES, ActionTokens, TokenLosses

CONFIG = AlgorithmConfig(clip_low=0.2, clip_high=0.28)


def run(name: str, now: list[float], then: list[float], advantages: list[float]) -> tuple[TokenLosses, list[float]]:
    """The losses and the gradient of their sum by the trained policy's logprobs."""
    logprobs = torch.tensor(now, requires_grad=True)
    result = POLICY_LOSSES.get(name)(ActionTokens(logprobs, torch.tensor(then), torch.tensor(advantages)), CONFIG)
    result.losses.sum().backward()
    assert logprobs.grad is not None
    return result, logprobs.grad.tolist()


# ratio, advantage → loss, whether the gradient is cut off; worked by hand from PPO's equation 7
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.56, True),  # gains nothing above 1.28
        (1.5, -2.0, 3.0, False),  # too likely and bad: the full gradient
        (0.5, 2.0, -1.0, False),  # too unlikely and good: the full gradient
        (0.5, -2.0, 1.6, True),  # gains nothing below 0.8
        (1.25, 1.0, -1.25, False),  # inside, for clip_high is 0.28
        (0.75, -1.0, 0.8, True),  # outside, for clip_low is 0.2
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    result, gradient = run("ppo_clip", [math.log(ratio) - 1.5], [-1.5], [advantage])
    assert result.losses.tolist() == pytest.approx([loss], rel=1e-5)
    assert result.clipped is not None
    assert result.clipped.tolist() == [clipped]
    # d/dlogp of -ratio * A is -ratio * A
    assert gradient == pytest.approx([0.0 if clipped else -ratio * advantage], rel=1e-5)


def test_ppo_clip_matches_plain_loops_in_float64() -> None:
    generator = torch.Generator().manual_seed(1)
    now = (-2 + torch.randn(200, generator=generator)).tolist()
    then = (-2 + torch.randn(200, generator=generator)).tolist()
    advantages = torch.randn(200, generator=generator).tolist()
    expected = []
    for new, old, advantage in zip(now, then, advantages, strict=True):
        ratio = math.exp(new - old)
        expected.append(max(-ratio * advantage, -min(max(ratio, 0.8), 1.28) * advantage))
    result, _ = run("ppo_clip", now, then, advantages)
    assert result.losses.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("now", [-500.0, -0.001])
@pytest.mark.parametrize("then", [-500.0, -0.001])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_an_extreme_ratio_stays_finite(now: float, then: float, advantage: float) -> None:
    result, gradient = run("ppo_clip", [now], [then], [advantage])
    assert math.isfinite(result.losses.item())
    assert math.isfinite(gradient[0])


def test_reinforce_and_sft_by_hand() -> None:
    result, gradient = run("reinforce", [-1.0, -2.0], [-9.0, -9.0], [3.0, -0.5])
    assert (result.losses.tolist(), gradient) == ([3.0, -1.0], [-3.0, 0.5])
    result, gradient = run("sft", [-1.0, -2.0], [0.0, 0.0], [1.0, 1.0])
    assert (result.losses.tolist(), gradient) == ([1.0, 2.0], [-1.0, -1.0])
    assert result.clipped is None
