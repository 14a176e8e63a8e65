"""Tasks, and the protocol of what they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import xxhash

from common.errors import ConfigError

Message: TypeAlias = Mapping[str, str]
"""One chat message: `role` and `content`."""
Prompt: TypeAlias = str | Sequence[Message]
"""Text, taken as it is, or chat messages, which go through the tokenizer's chat template."""


@dataclass(frozen=True, slots=True)
class Task:
    """One item of a taskset: a prompt plus what its reward needs."""

    task_id: str
    """Unique in its taskset."""
    prompt: Prompt
    """What the policy is given."""
    answer: str | None = None
    """What is right, for rewards that compare."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that a workflow or reward needs."""


class Taskset(Protocol):
    """A fixed, indexable set of tasks. The order in which they are done is `TaskOrder`'s business."""

    def __len__(self) -> int:
        """Number of tasks."""

    def task(self, index: int) -> Task:
        """The task at 0 <= index < len. Always the same one for an index."""

    @property
    def fingerprint(self) -> str:
        """Hex hash of the content: a run that resumes refuses another taskset."""


class TaskList:
    """A taskset held in memory."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = tuple(tasks)
        self._fingerprint = fingerprint_tasks(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """The task at that position."""
        return self._tasks[index]

    @property
    def fingerprint(self) -> str:
        """Hash over all tasks in order."""
        return self._fingerprint


def fingerprint_tasks(tasks: Iterable[Task]) -> str:
    """Hex xxh3-128 over the tasks' JSON in order. Raises ConfigError for fields that JSON cannot hold."""
    state = xxhash.xxh3_128()
    for task in tasks:
        prompt = task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt]
        try:
            text = json.dumps([task.task_id, prompt, task.answer, dict(task.fields)], sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"task {task.task_id!r} has fields that are no JSON values: {error}") from error
        state.update(text.encode() + b"\n")
    return state.hexdigest()
