import math
from collections.abc import Callable

import pytest
import torch

from trainer_service.algorithm.entropy import entropy
from trainer_service.algorithm.kl import KL_ESTIMATORS

POLICY = [0.5, 0.3, 0.2]
REFERENCE = [0.2, 0.2, 0.6]
KL = sum(p * math.log(p / q) for p, q in zip(POLICY, REFERENCE, strict=True))


def estimates(name: str, logits: torch.Tensor) -> torch.Tensor:
    """The estimate for each token of the vocabulary as the sampled one."""
    return KL_ESTIMATORS[name](logits.log_softmax(-1), torch.tensor(REFERENCE).log())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", lambda d: -d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(d) - 1 - d),
    ],
)
def test_each_estimator_is_its_formula(name: str, expected: Callable[[float], float]) -> None:
    differences = [math.log(q / p) for p, q in zip(POLICY, REFERENCE, strict=True)]
    result = estimates(name, torch.tensor(POLICY).log())
    assert result.tolist() == pytest.approx([expected(d) for d in differences], rel=1e-5)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name: str) -> None:
    result = estimates(name, torch.tensor(POLICY).log())
    assert sum(p * e for p, e in zip(POLICY, result.tolist(), strict=True)) == pytest.approx(KL, rel=1e-5)


def test_the_expected_gradient_of_k2_is_that_of_the_kl() -> None:
    exact = torch.tensor(POLICY).log().requires_grad_()
    distribution = exact.softmax(-1)
    (distribution * (distribution / torch.tensor(REFERENCE)).log()).sum().backward()
    sampled = torch.tensor(POLICY).log().requires_grad_()
    (torch.tensor(POLICY) * estimates("k2", sampled)).sum().backward()
    assert sampled.grad is not None
    assert exact.grad is not None
    assert sampled.grad.tolist() == pytest.approx(exact.grad.tolist(), abs=1e-6)


def test_k3_stays_finite_and_nonnegative_for_any_difference() -> None:
    logprobs = torch.tensor([-1000.0, 0.0, -3.0])
    result = KL_ESTIMATORS["k3"](logprobs, logprobs.flip(0))
    assert bool(result.isfinite().all())
    assert bool((result >= 0).all())


def test_entropy_by_hand() -> None:
    uniform = torch.full((1, 8), 1 / 8).log()
    certain = torch.tensor([[0.0, -torch.inf]])
    assert entropy(uniform).tolist() == pytest.approx([math.log(8)])
    assert entropy(certain).tolist() == [0.0]


def test_entropy_of_impossible_tokens_has_a_finite_gradient() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    entropy(logits.log_softmax(-1)).sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
