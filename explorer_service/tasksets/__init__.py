"""Tasksets: where tasks come from, and in which order they are done."""

from explorer_service.tasksets.base import Message, Prompt, Task, TaskList, Taskset
from explorer_service.tasksets.digit_skills import DigitSkills
from explorer_service.tasksets.jsonl import JsonlTaskset
from explorer_service.tasksets.order import TaskOrder
from explorer_service.tasksets.registry import TASKSETS

__all__ = [
    "TASKSETS",
    "DigitSkills",
    "JsonlTaskset",
    "Message",
    "Prompt",
    "Task",
    "TaskList",
    "TaskOrder",
    "Taskset",
]
