"""The bases of workflows.

Write a `RolloutWorkflow` unless the rollouts of a task have something to share: its `rollout` runs one, and what raises
or hangs there fails alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from common.errors import WorkflowFailed
from explorer_service.rewards.scoring import Scorer
from explorer_service.tasksets.base import Task
from explorer_service.workflows.policy import Policy
from explorer_service.workflows.rollout import Rollout
from explorer_service.workflows.settle import settle


class Workflow(ABC):
    """Makes the rollouts of a task. One instance serves all groups, many at once: it keeps nothing between calls.

    Built with the taskset's reward and the config's `taskset.workflow_options` as keyword arguments. It runs on the
    event loop, so it must not block: `await asyncio.to_thread(...)` what does.
    """

    def __init__(self, score: Scorer) -> None:
        self.score = score

    @abstractmethod
    async def run(self, task: Task, policies: Sequence[Policy], deadline: float) -> Sequence[Rollout | WorkflowFailed]:
        """One rollout, or the failure of it, for each policy and in their order, by `deadline` (the loop's clock)."""


class RolloutWorkflow(Workflow):
    """A workflow whose rollouts know nothing of each other."""

    async def run(self, task: Task, policies: Sequence[Policy], deadline: float) -> Sequence[Rollout | WorkflowFailed]:
        """Runs them concurrently."""
        return await settle((self.rollout(task, policy) for policy in policies), deadline)

    @abstractmethod
    async def rollout(self, task: Task, policy: Policy) -> Rollout:
        """One rollout. Whatever it raises counts as its failure."""
