"""Workflows: how rollouts of a task are made."""

from explorer_service.workflows.base import RolloutWorkflow, Workflow
from explorer_service.workflows.chat import Tokenizer
from explorer_service.workflows.multi_turn import Environment, MultiTurn, Turn
from explorer_service.workflows.policy import Policy
from explorer_service.workflows.registry import WORKFLOWS
from explorer_service.workflows.rollout import Rollout
from explorer_service.workflows.single_turn import SingleTurn
from explorer_service.workflows.transcript import Transcript

__all__ = [
    "WORKFLOWS",
    "Environment",
    "MultiTurn",
    "Policy",
    "Rollout",
    "RolloutWorkflow",
    "SingleTurn",
    "Tokenizer",
    "Transcript",
    "Turn",
    "Workflow",
]
