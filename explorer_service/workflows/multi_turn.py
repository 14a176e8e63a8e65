"""The base of workflows in which an environment answers the policy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import ConfigError
from explorer_service.rewards.scoring import Scorer, finite_number
from explorer_service.tasksets.base import Message, Task
from explorer_service.workflows.base import RolloutWorkflow
from explorer_service.workflows.policy import Policy
from explorer_service.workflows.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Turn:
    """What an environment answers to one reply."""

    observation: str | Sequence[Message] | None = None
    """Text, taken as it is, or chat messages; None: the episode has ended."""
    reward: float | None = None
    """For this reply. The rewards of an episode are added up."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name; a later turn's replace an earlier one's."""


class Environment(Protocol):
    """One episode's world."""

    async def step(self, reply: str) -> Turn:
        """Answers what the policy wrote."""


class MultiTurn(RolloutWorkflow):
    """Lets policy and environment write one sequence in turns.

    An episode ends when the environment says so, when a reply is cut off at its length limit, after `max_turns` replies
    or when the context is full. An episode in which no turn was rewarded is scored by the taskset's reward on its last
    reply. The metric `turns` counts the replies.
    """

    def __init__(self, score: Scorer, *, max_turns: int = 8) -> None:
        super().__init__(score)
        if max_turns < 1:
            raise ConfigError(f"taskset.workflow_options.max_turns is {max_turns}, at least 1 is needed")
        self._max_turns = max_turns

    @abstractmethod
    async def environment(self, task: Task) -> Environment:
        """A new environment for one episode of the task."""

    async def rollout(self, task: Task, policy: Policy) -> Rollout:
        """Runs one episode."""
        environment = await self.environment(task)
        transcript = policy.start(task.prompt)
        rewards: list[float] = []
        metrics: dict[str, float] = {}
        for turns in range(1, self._max_turns + 1):
            reply = await policy.reply(transcript)
            turn = await environment.step(reply)
            metrics |= {**turn.metrics, "turns": float(turns)}
            if turn.reward is not None:
                rewards.append(finite_number(turn.reward, "a turn's reward"))
            if turn.observation is None or transcript.truncated or turns == self._max_turns:
                break
            if not policy.observe(transcript, turn.observation):
                transcript.truncated = True
                break
        return transcript.finish(sum(rewards) if rewards else await self.score(task, reply), metrics)
