"""Experiences for tests: small ones to check by hand, random ones in bulk."""

import numpy as np

from common.experience.experience import Experience, ExperienceGroup


def experience(
    tokens: list[int],
    prompt_length: int,
    *,
    mask: list[int] | None = None,
    logprobs: list[float] | None = None,
    reward: float = 1.0,
    oldest: int = 0,
    newest: int = 0,
    truncated: bool = False,
    prompt_text: str = "",
    response_text: str = "",
) -> Experience:
    responses = len(tokens) - prompt_length
    return Experience(
        tokens=np.array(tokens, np.int32),
        prompt_length=prompt_length,
        action_mask=np.array([1] * responses if mask is None else mask, np.uint8),
        logprobs=np.array([-0.5] * responses if logprobs is None else logprobs, np.float32),
        reward=reward,
        oldest_version=oldest,
        newest_version=newest,
        truncated=truncated,
        prompt_text=prompt_text,
        response_text=response_text,
    )


def two_experiences() -> list[Experience]:
    """N = 2, T = 6 + 4 = 10, R = 3 + 2 = 5; the first has an environment's token in the middle."""
    return [
        experience([5, 9, 2, 7, 8, 1], 3, mask=[1, 0, 1], logprobs=[-0.25, 0, -2], reward=0.5, oldest=3, newest=4),
        experience([4, 3, 2, 1], 2, logprobs=[-1, -0.5], reward=-1, oldest=4, newest=4, truncated=True),
    ]


def group(task_id: str, ordinal: int, experiences: list[Experience], **changes: object) -> ExperienceGroup:
    fields: dict[str, object] = {"explore_step": 1, "run_epoch": 1} | changes
    return ExperienceGroup(task_id=task_id, ordinal=ordinal, experiences=experiences, **fields)
