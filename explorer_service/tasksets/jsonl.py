"""Taskset `jsonl`: one task a line of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from explorer_service.tasksets.base import Prompt, Task, TaskList
from explorer_service.tasksets.registry import TASKSETS

DEFAULT_ANSWER_KEY = "answer"


@TASKSETS.register("jsonl")
class JsonlTaskset(TaskList):
    """Reads a file of JSON objects, one a line; empty lines are skipped.

    `prompt_key` names a string, or a list of `{"role", "content"}` messages. `answer_key` names a string or number that
    every line must have; left unset it is `answer`, where a line has it. All other keys become the task's fields. A task
    is named after its line. The whole file is read and checked at once: it may have `max_bytes` bytes (default 256 MiB).
    Raises ConfigError naming file and line.
    """

    def __init__(
        self, path: str, prompt_key: str = "prompt", answer_key: str | None = None, max_bytes: int = 256 << 20
    ) -> None:
        file = Path(path)
        self._prompt_key = prompt_key
        self._answer_key = answer_key
        super().__init__(
            self._parse(line, f"{file}:{number}", number)
            for number, line in enumerate(_read(file, max_bytes).split(b"\n"), start=1)
            if line.strip()
        )
        if not len(self):
            raise ConfigError(f"{file} has no tasks")

    def _parse(self, line: bytes, place: str, number: int) -> Task:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: no JSON: {error}") from error
        if not isinstance(record, dict):
            raise ConfigError(f"{place}: a JSON object is needed, not {type(record).__name__}")
        if self._prompt_key not in record:
            raise ConfigError(f"{place}: no key {self._prompt_key!r}; there are {_keys(record)}")
        prompt = _prompt(record.pop(self._prompt_key), f"{place}: {self._prompt_key!r}")
        if self._answer_key is not None and self._answer_key not in record:
            raise ConfigError(f"{place}: no key {self._answer_key!r}; there are {_keys(record)}")
        answer = _answer(record.pop(self._answer_key or DEFAULT_ANSWER_KEY, None), place)
        return Task(f"line-{number}", prompt, answer, record)


def _read(file: Path, max_bytes: int) -> bytes:
    # is_file is false for FIFOs and devices, which may never end.
    if not file.is_file():
        raise ConfigError(f"taskset.options.path: {str(file)!r} is no file")
    try:
        with file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"taskset.options.path: cannot read {str(file)!r}: {error}") from error
    if len(content) > max_bytes:
        raise ConfigError(f"{file} has more than {max_bytes} bytes; raise taskset.options.max_bytes to read it")
    return content


def _prompt(value: Any, place: str) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_message(message) for message in value):
        return tuple(value)
    raise ConfigError(f"{place} is neither a text nor a list of messages with `role` and `content`")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _answer(value: Any, place: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{place}: the answer is neither a text nor a number but {type(value).__name__}")


def _keys(record: dict[str, Any]) -> str:
    return ", ".join(map(repr, sorted(record)[:20])) or "none"
