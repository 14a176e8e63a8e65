import dataclasses
import math

import pytest
import torch

from common.errors import TrainingDiverged
from tests.support.train_batches import random_batch, tiny_engine
from trainer_service.engine.torch_engine import TorchTrainEngine

GOOD = random_batch(0)
BAD = dataclasses.replace(GOOD, rewards=torch.full_like(GOOD.rewards, float("nan")))


def moments(engine: TorchTrainEngine) -> dict[str, torch.Tensor]:
    return dict(engine.capture().moments)


def test_a_step_with_a_nan_leaves_weights_and_moments_as_they_were() -> None:
    engine = tiny_engine()
    engine.train_step(GOOD)
    weights, before = engine.layout.manifest_hash, moments(engine)
    result = engine.train_step(BAD)
    assert not result.applied
    assert result.metrics["train/skipped_steps"] == 1
    assert math.isnan(result.metrics["loss/total"])
    assert engine.export_weights().manifest.manifest_hash == weights
    after = moments(engine)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert engine.train_step(GOOD).applied


def test_an_infinite_gradient_of_a_finite_loss_is_skipped() -> None:
    engine = tiny_engine()
    before = engine.layout.manifest_hash
    next(iter(engine._model.parameters())).register_hook(lambda gradient: gradient * float("inf"))
    assert not engine.train_step(GOOD).applied
    assert engine.layout.manifest_hash == before


def test_one_more_than_allowed_in_a_row_ends_the_run_with_the_weights_from_before() -> None:
    engine = tiny_engine(algorithm={"max_nonfinite_steps": 2})
    before = engine.layout.manifest_hash
    engine.train_step(BAD)
    engine.train_step(BAD)
    with pytest.raises(TrainingDiverged, match="max_nonfinite_steps is 2"):
        engine.train_step(BAD)
    assert engine.layout.manifest_hash == before


def test_a_good_step_in_between_starts_the_count_anew() -> None:
    engine = tiny_engine(algorithm={"max_nonfinite_steps": 1})
    for _ in range(3):
        assert not engine.train_step(BAD).applied
        assert engine.train_step(GOOD).applied
    assert engine.train_step(GOOD).metrics["train/skipped_steps"] == 3
