"""Rewards by name."""

from __future__ import annotations

from common.registry import Registry
from explorer_service.rewards.base import Reward

REWARDS: Registry[Reward] = Registry("reward")
"""A function that takes `task, response` and the config's `taskset.reward_options` as keyword arguments; or a class that
takes the options, and whose instances take `task, response`."""
