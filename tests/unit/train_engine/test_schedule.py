import math

import pytest
import torch

from common.config.algorithm import OptimizerConfig
from common.errors import ConfigError
from tests.support.train_batches import random_batch, tiny_engine
from trainer_service.engine.optimizer import Schedule, build_optimizer


def rates(total: int | None, steps: int, **config: object) -> list[float]:
    schedule = Schedule(OptimizerConfig.model_validate({"lr": 1.0, **config}), total)
    return [schedule.rate(step) for step in range(steps)]


def test_warm_up_then_constant_by_hand() -> None:
    assert rates(None, 6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_linear_decay_by_hand() -> None:
    assert rates(6, 8, warmup_steps=2, schedule="linear") == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    assert rates(4, 5, schedule="linear", min_lr_ratio=0.2) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_cosine_decay_by_hand() -> None:
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)]
    assert rates(4, 5, schedule="cosine", min_lr_ratio=0.1) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decay_without_an_end_is_refused(schedule: str) -> None:
    with pytest.raises(ConfigError, match=r"needs `trainer\.total_steps`"):
        rates(None, 1, schedule=schedule)
    with pytest.raises(ConfigError, match="warmup_steps"):
        rates(3, 1, schedule=schedule, warmup_steps=3)


def test_vectors_are_never_decayed_and_frozen_parameters_left_out() -> None:
    matrix, vector, frozen = (torch.nn.Parameter(torch.ones(*shape)) for shape in ((2, 2), (2,), (3, 3)))
    frozen.requires_grad_(requires_grad=False)
    optimizer = build_optimizer([matrix, vector, frozen], OptimizerConfig(weight_decay=0.1))
    groups = [(group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in optimizer.param_groups]
    assert groups == [(0.1, [(2, 2)]), (0.0, [(2,)])]


def test_each_step_reports_the_rate_it_used() -> None:
    engine = tiny_engine(4, algorithm={"optimizer": {"lr": 0.5, "schedule": "linear"}})
    assert [engine.train_step(random_batch(0)).metrics["lr"] for _ in range(3)] == [0.5, 0.375, 0.25]
