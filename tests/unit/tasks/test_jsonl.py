import os
from pathlib import Path

import pytest

from common.errors import ConfigError
from explorer_service.tasksets import JsonlTaskset, Task, TaskList


def write(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def test_lines_become_tasks_named_after_them(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "2+2=", "answer": "4", "level": 1}', "", '{"prompt": "é=", "answer": 2.5}')
    taskset = JsonlTaskset(path)
    assert [taskset.task(index) for index in range(len(taskset))] == [
        Task("line-1", "2+2=", "4", {"level": 1}),
        Task("line-3", "é=", "2.5", {}),
    ]


def test_prompts_can_be_chats_and_keys_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"q": [{"role": "user", "content": "hi"}], "a": "yes", "answer": "kept"}')
    task = JsonlTaskset(path, prompt_key="q", answer_key="a").task(0)
    assert task == Task("line-1", ({"role": "user", "content": "hi"},), "yes", {"answer": "kept"})


def test_a_task_needs_no_answer_unless_its_key_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "x"}')
    assert JsonlTaskset(path).task(0).answer is None
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1: no key 'answer'; there are none"):
        JsonlTaskset(path, answer_key="answer")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "a JSON object is needed, not list"),
        ('{"question": "x"}', "no key 'prompt'; there are 'question'"),
        ('{"prompt": ""}', "neither a text nor a list"),
        ('{"prompt": []}', "neither a text nor a list"),
        ('{"prompt": [{"role": "user"}]}', "neither a text nor a list"),
        ('{"prompt": "x", "answer": true}', "the answer is neither"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"tasks\.jsonl:2: .*{message}"):
        JsonlTaskset(write(tmp_path, '{"prompt": "fine"}', line))


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1: no JSON"):
        JsonlTaskset(str(file))


def test_what_is_no_plain_file_or_too_large_or_empty_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "x"}')
    with pytest.raises(ConfigError, match="more than 5 bytes"):
        JsonlTaskset(path, max_bytes=5)
    with pytest.raises(ConfigError, match="is no file"):
        JsonlTaskset(str(tmp_path / "missing"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is no file"):
        JsonlTaskset(str(tmp_path / "pipe"))
    with pytest.raises(ConfigError, match="has no tasks"):
        JsonlTaskset(write(tmp_path, ""))


def test_the_fingerprint_changes_with_any_part_of_any_task() -> None:
    base = Task("a", "p", "1", {"k": 1})
    variants = [
        [base],
        [Task("b", "p", "1", {"k": 1})],
        [Task("a", "q", "1", {"k": 1})],
        [Task("a", ({"role": "user", "content": "p"},), "1", {"k": 1})],
        [Task("a", "p", None, {"k": 1})],
        [Task("a", "p", "1", {"k": 2})],
        [base, base],
    ]
    assert len({TaskList(tasks).fingerprint for tasks in variants}) == len(variants)
    assert TaskList([base]).fingerprint == TaskList([Task("a", "p", "1", {"k": 1})]).fingerprint
    with pytest.raises(ConfigError, match="'a' has fields that are no JSON"):
        TaskList([Task("a", "p", "1", {"k": object()})])
