"""Rewards: functions that score a response to a task."""

from explorer_service.rewards import length, match
from explorer_service.rewards.base import Reward, RewardValue, Score, inline
from explorer_service.rewards.registry import REWARDS
from explorer_service.rewards.scoring import Scorer

__all__ = ["REWARDS", "Reward", "RewardValue", "Score", "Scorer", "inline", "length", "match"]
