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


@REWARDS.register("faulty")
async def faulty(task: Task, response: str, *, fault: str) -> object:
    """Goes wrong on tasks whose prompts begin with an `s` or an `r`, in the way that is asked for."""
    if not str(task.prompt).startswith(("s", "r")):
        return share_of_digits(task, response)
    match fault:
        case "raises":
            raise ValueError("not this one")
        case "hangs":
            await asyncio.Event().wait()
        case "nan":
            return float("nan")
        case "infinite":
            return float("inf")
        case "text":
            return "very good"
        case "list":
            return [1.0, 2.0]
    return None
