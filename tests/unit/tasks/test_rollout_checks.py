from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.errors import WorkflowFailed
from common.experience.experience import Experience
from explorer_service.workflows import Rollout
from explorer_service.workflows.rollout import check_rollout

GOOD = Experience(
    tokens=np.array([5, 9, 7, 8, 1], np.int32),
    prompt_length=2,
    action_mask=np.array([1, 0, 1], np.uint8),
    logprobs=np.array([-0.5, 0, -1], np.float32),
    reward=1.0,
    oldest_version=3,
    newest_version=4,
)


def test_a_good_rollout_passes_unchanged() -> None:
    rollout = Rollout((GOOD, GOOD), 1, {"turns": 2.0})
    assert check_rollout(rollout) is rollout


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [5, 9, 7, 8, 1]},
        {"tokens": GOOD.tokens.astype(np.int64)},
        {"tokens": GOOD.tokens[None]},
        {"tokens": np.array([5, 9, 7, 8, -1], np.int32)},
        {"prompt_length": 0},
        {"prompt_length": 5},
        {"action_mask": np.array([1, 0], np.uint8)},
        {"action_mask": np.array([True, False, True])},
        {"action_mask": np.array([0, 0, 0], np.uint8), "logprobs": np.zeros(3, np.float32)},
        {"action_mask": np.array([1, 0, 2], np.uint8)},
        {"logprobs": np.array([-0.5, 0], np.float32)},
        {"logprobs": np.array([-0.5, 0, -1])},
        {"logprobs": np.array([-0.5, 0, np.nan], np.float32)},
        {"logprobs": np.array([-0.5, -2, -1], np.float32)},
        {"reward": float("nan")},
        {"reward": "1"},
        {"oldest_version": 5},
        {"oldest_version": -1},
    ],
)
def test_an_experience_that_would_mislead_the_trainer_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WorkflowFailed):
        check_rollout(Rollout((replace(GOOD, **change),), 1))


@pytest.mark.parametrize(
    "rollout", [None, 1.0, GOOD, Rollout((), 1), Rollout(("x",), 1), Rollout((GOOD,), 1, {"a": "b"})]
)
def test_what_is_no_rollout_is_refused(rollout: Any) -> None:
    with pytest.raises(WorkflowFailed):
        check_rollout(rollout)
