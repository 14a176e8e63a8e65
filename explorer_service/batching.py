"""Which finished groups travel together: checked, and no more than the trainer takes in one message."""

from __future__ import annotations

from collections import deque

from common.config.root import LimitsConfig
from common.errors import MalformedData, WorkflowFailed
from common.experience.columns import Columns
from common.experience.experience import ExperienceGroup

TOKEN_BYTES = 4
RESPONSE_BYTES = 5
"""A response token's mask and logprob, beside the token itself."""
EXPERIENCE_BYTES = 64
"""Lengths, versions, reward, and the framing of texts."""
GROUP_BYTES = 1024
"""Ids and counters; a metric takes about its name's length and 16 bytes."""
MESSAGE_BYTES = 4096
"""The columns' header and the message around it."""


def check_group(group: ExperienceGroup, limits: LimitsConfig) -> None:
    """Raises WorkflowFailed for a group that the trainer would refuse: in a spool it would be refused for ever."""
    try:
        Columns.from_experiences(group.experiences)
    except MalformedData as error:
        raise WorkflowFailed(f"task {group.task_id!r}: {error.message}", task_id=group.task_id) from error
    if len(group.experiences) > limits.batch_experiences:
        raise WorkflowFailed(
            f"task {group.task_id!r} made {len(group.experiences)} experiences, `limits.batch_experiences` allows "
            f"{limits.batch_experiences}"
        )
    longest = max(len(experience.tokens) for experience in group.experiences)
    if longest > limits.experience_tokens:
        raise WorkflowFailed(
            f"task {group.task_id!r} made an experience of {longest} tokens, `limits.experience_tokens` allows "
            f"{limits.experience_tokens}"
        )
    size = MESSAGE_BYTES + group_bytes(group)
    if size > limits.message_bytes:
        raise WorkflowFailed(
            f"task {group.task_id!r} made {size} bytes, `limits.message_bytes` allows {limits.message_bytes}"
        )


def group_bytes(group: ExperienceGroup) -> int:
    """Bytes that the group takes on the wire, at most."""
    tokens = sum(len(experience.tokens) for experience in group.experiences)
    responses = sum(len(experience.logprobs) for experience in group.experiences)
    texts = sum(len((one.prompt_text + one.response_text).encode()) for one in group.experiences)
    names = sum(len(name.encode()) + 16 for name in group.metrics) + len(group.task_id.encode())
    own = TOKEN_BYTES * tokens + RESPONSE_BYTES * responses + EXPERIENCE_BYTES * len(group.experiences)
    return own + texts + names + GROUP_BYTES


def take_batch(finished: deque[ExperienceGroup], max_groups: int, limits: LimitsConfig) -> list[ExperienceGroup]:
    """Removes the groups of the next batch, at least one, of checked groups in the order in which they finished."""
    batch = [finished.popleft()]
    size = MESSAGE_BYTES + group_bytes(batch[0])
    experiences = len(batch[0].experiences)
    while finished and len(batch) < max_groups:
        size += group_bytes(finished[0])
        experiences += len(finished[0].experiences)
        if size > limits.message_bytes or experiences > limits.batch_experiences:
            break
        batch.append(finished.popleft())
    return batch
