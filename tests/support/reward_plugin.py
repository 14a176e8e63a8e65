"""Rewards for tests: name this module in `plugins`."""

import asyncio

from explorer_service.rewards import REWARDS
from explorer_service.tasksets import Task


@REWARDS.register("share_of_digits")
def share_of_digits(task: Task, response: str) -> float:
    """Something that a random model gets some of, so that every step has a signal."""
    del task
    return sum(character.isdigit() for character in response) / 5


@REWARDS.register("unhappy")
def unhappy(task: Task, response: str) -> float:
    """Always fails."""
    raise ValueError(f"no reward for {response!r}")


@REWARDS.register("slow_digits")
async def slow_digits(task: Task, response: str) -> float:
    """Takes a while, so that something is always in flight."""
    await asyncio.sleep(0.1)
    return share_of_digits(task, response)


@REWARDS.register("picky")
def picky(task: Task, response: str) -> float:
    """Fails on tasks whose prompts begin with an `s`."""
    if str(task.prompt).startswith("s"):
        raise ValueError("not this one")
    return share_of_digits(task, response)


@REWARDS.register("stuck")
async def stuck(task: Task, response: str) -> float:
    """Never comes back."""
    await asyncio.Event().wait()
    return share_of_digits(task, response)
