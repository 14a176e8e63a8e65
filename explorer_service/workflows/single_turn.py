"""Workflow `single_turn`: one prompt, one response, one reward."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import WorkflowFailed
from explorer_service.engine.base import Completion
from explorer_service.tasksets.base import Task
from explorer_service.workflows.base import Workflow
from explorer_service.workflows.policy import Policy
from explorer_service.workflows.registry import WORKFLOWS
from explorer_service.workflows.rollout import Rollout
from explorer_service.workflows.settle import settle
from explorer_service.workflows.transcript import Transcript


@WORKFLOWS.register("single_turn")
class SingleTurn(Workflow):
    """Samples all responses of a task in one call, so that the prompt is computed once, and scores each by itself."""

    async def run(self, task: Task, policies: Sequence[Policy], deadline: float) -> Sequence[Rollout | WorkflowFailed]:
        """One rollout a policy; the first policy's seed is that of the call."""
        prompt = policies[0].start(task.prompt)
        (completions,) = await settle([policies[0].generate(prompt.tokens, len(policies))], deadline)
        if isinstance(completions, WorkflowFailed):
            raise completions
        if self.score.is_inline:
            # It cannot hang, so it needs no task to be cancelled: that would be half of the work done here.
            return [await self._caught(task, prompt.fork(), completion) for completion in completions]
        return await settle((self._score(task, prompt.fork(), completion) for completion in completions), deadline)

    async def _caught(self, task: Task, transcript: Transcript, completion: Completion) -> Rollout | WorkflowFailed:
        try:
            return await self._score(task, transcript, completion)
        except WorkflowFailed as failure:
            return failure

    async def _score(self, task: Task, transcript: Transcript, completion: Completion) -> Rollout:
        transcript.add_completion(completion)
        return transcript.finish(await self.score(task, completion.text))
