"""What a workflow gives back, and the check of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.errors import WorkflowFailed
from common.experience.experience import Experience
from explorer_service.rewards.scoring import check_metrics, finite_number


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One run of a workflow on a task."""

    experiences: tuple[Experience, ...]
    """At least one; more where a workflow rewrites its context in between."""
    run_epoch: int
    """The oldest run epoch of the weights that made it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers by name."""

    @property
    def reward(self) -> float:
        """The reward of the last experience: the score of the whole."""
        return self.experiences[-1].reward


def check_rollout(rollout: object) -> Rollout:
    """The rollout, when every array in it has the dtype, length and values that the trainer relies on.

    Raises WorkflowFailed naming what is wrong: workflows are the user's code.
    """
    if not isinstance(rollout, Rollout):
        raise WorkflowFailed(f"the workflow returned a {type(rollout).__name__}, not a Rollout")
    if not rollout.experiences:
        raise WorkflowFailed("the workflow returned a rollout without experiences")
    check_metrics(rollout.metrics)
    for experience in rollout.experiences:
        _check_experience(experience)
    return rollout


def _check_experience(experience: object) -> None:
    if not isinstance(experience, Experience):
        raise WorkflowFailed(f"a rollout holds a {type(experience).__name__}, not an Experience")
    length = _check_array(experience.tokens, np.int32, "tokens")
    if not 0 < experience.prompt_length < length:
        raise WorkflowFailed(f"prompt_length is {experience.prompt_length} of {length} tokens; both parts need one")
    for name, dtype in (("action_mask", np.uint8), ("logprobs", np.float32)):
        found = _check_array(getattr(experience, name), dtype, name)
        if found != length - experience.prompt_length:
            raise WorkflowFailed(f"{name} has {found} entries for {length - experience.prompt_length} response tokens")
    if experience.tokens.min() < 0:
        raise WorkflowFailed("tokens has a negative entry")
    if experience.action_mask.max() != 1:
        raise WorkflowFailed("action_mask needs 1 where the policy wrote, 0 elsewhere, and a 1 somewhere")
    written = experience.action_mask.astype(bool)
    if not (np.isfinite(experience.logprobs).all() and (experience.logprobs[~written] == 0).all()):
        raise WorkflowFailed("logprobs needs finite numbers, and 0 where action_mask is 0")
    finite_number(experience.reward, "the reward")
    if not 0 <= experience.oldest_version <= experience.newest_version:
        raise WorkflowFailed(f"versions {experience.oldest_version} to {experience.newest_version} are no range")


def _check_array(array: object, dtype: type[np.generic], name: str) -> int:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise WorkflowFailed(f"{name} is {found}, not a one-dimensional {np.dtype(dtype)} array")
    return len(array)
