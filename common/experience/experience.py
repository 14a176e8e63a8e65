"""The value types of experience data (see DESIGN's glossary).

Shape letters: `L` tokens of one sequence, `P` of them prompt, `R = L - P` after the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
MaskArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Experience:
    """One trainable token sequence of a rollout."""

    tokens: IntArray
    """int32 `[L]`: the prompt, then everything after it. Example: `[5, 9, 2 | 7, 7, 1]` with P = 3."""
    prompt_length: int
    """`P`: tokens before the first generated one; 0 < P < L."""
    action_mask: MaskArray
    """uint8 `[R]`: 1 for tokens that the policy sampled, 0 for what an environment wrote in between."""
    logprobs: FloatArray
    """float32 `[R]`: behaviour logprobs, on the support that was sampled from; 0 where `action_mask` is 0."""
    reward: float
    """The rollout's score."""
    oldest_version: int
    """Policy step of the oldest token's weights."""
    newest_version: int
    """Policy step of the newest token's weights."""
    truncated: bool = False
    """True when the length limit, not a stop token, ended it."""
    prompt_text: str = ""
    """For previews."""
    response_text: str = ""
    """For previews."""


@dataclass(frozen=True, slots=True, eq=False)
class ExperienceGroup:
    """The experiences of one task, which share a baseline."""

    task_id: str
    """Name of the task within its taskset."""
    ordinal: int
    """Position in its explorer's stream of groups, from 0; never reused in a run."""
    explore_step: int
    """The explore step that started it, from 1."""
    run_epoch: int
    """Run epoch of the weights that made it."""
    experiences: Sequence[Experience]
    """At least one."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the workflow reported, averaged over the group."""
    failed_rollouts: int = 0
    """Rollouts that failed and are not in it."""
    task: int = 0
    """Position of its task in the run's order of tasks."""

    @property
    def oldest_version(self) -> int:
        """Policy step of the oldest token in the group."""
        return min(experience.oldest_version for experience in self.experiences)
