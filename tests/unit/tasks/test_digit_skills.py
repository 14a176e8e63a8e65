import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigError
from explorer_service.tasksets import DigitSkills, Task, Taskset
from explorer_service.tasksets.digit_skills import SKILLS, is_held_out, supervised_examples
from explorer_service.tasksets.digit_skills.__main__ import main
from explorer_service.tasksets.digit_skills.skills import SPLITS
from explorer_service.tasksets.mixing import mix, permutation


def tasks_of(taskset: Taskset) -> list[Task]:
    return [taskset.task(index) for index in range(len(taskset))]


@pytest.fixture(scope="module")
def answers() -> dict[str, str | None]:
    return {task.prompt: task.answer for split in SPLITS for task in tasks_of(DigitSkills(split))}


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("s5281=", "1258"),
        ("r5281=", "1825"),
        ("c5281=", "5281"),
        ("d5281=", "8521"),
        ("s0070=", "0007"),
        ("r0070=", "0700"),
        ("c0070=", "0070"),
        ("d0070=", "7000"),
    ],
)
def test_each_letter_asks_for_its_skill(answers: dict[str, str | None], prompt: str, answer: str) -> None:
    assert answers[prompt] == answer


def test_no_held_out_digits_occur_in_training_and_none_are_lost() -> None:
    digits = {split: {task.prompt[1:5] for task in tasks_of(DigitSkills(split))} for split in ("train", "held_out")}
    everything = {"".join(four) for four in itertools.product("0123456789", repeat=4)}
    assert not digits["train"] & digits["held_out"]
    assert digits["train"] | digits["held_out"] == everything
    assert all(is_held_out(text) == (text in digits["held_out"]) for text in everything)
    # 1250 are expected; 4 standard deviations of a binomial are 132.
    assert abs(len(digits["held_out"]) - 1250) < 132


def test_a_split_asks_every_skill_of_every_string_once() -> None:
    prompts = Counter(task.prompt for task in tasks_of(DigitSkills("held_out")))
    assert set(prompts.values()) == {1}
    assert len(prompts) % 4 == 0
    assert all(f"{letter}{prompt[1:]}" in prompts for prompt in prompts for letter in "srcd")


def test_count_and_seed_choose_different_tasks_and_say_so() -> None:
    some = DigitSkills("train", count=100, seed=1)
    assert [task.prompt for task in tasks_of(some)] == [
        task.prompt for task in tasks_of(DigitSkills(count=100, seed=1))
    ]
    assert some.fingerprint == DigitSkills(count=100, seed=1).fingerprint
    others = [DigitSkills(count=100, seed=2), DigitSkills(count=99, seed=1), DigitSkills("held_out", count=100, seed=1)]
    assert len({some.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert len({task.prompt for task in tasks_of(some)}) == 100


@pytest.mark.parametrize("options", [{"split": "test"}, {"digits": 0}, {"digits": 7}, {"count": 0}, {"count": 40_001}])
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="digit_skills"):
        DigitSkills(**options)


def test_supervised_examples_apply_a_uniform_skill_whatever_the_letter() -> None:
    counts = np.zeros((4, 4))
    for example in supervised_examples(20_000, seed=3):
        digits = example["prompt"][1:5]
        results = [skill(digits) for skill in SKILLS.values()]
        # Only where the four results differ does a response tell which skill made it.
        if len(set(results)) == 4:
            counts["srcd".index(example["prompt"][0]), results.index(example["response"])] += 1
    expected = counts.sum() / 16
    assert expected > 500
    # Chi squared with 15 degrees of freedom exceeds 37.7 once in a thousand seeds.
    assert ((counts - expected) ** 2 / expected).sum() < 37.7


def test_supervised_examples_never_show_held_out_digits() -> None:
    assert not any(is_held_out(example["prompt"][1:5]) for example in supervised_examples(5000, seed=0))


def test_the_command_writes_the_same_file_for_a_seed(tmp_path: Path) -> None:
    main([str(tmp_path / "a.jsonl"), "--count", "50", "--seed", "5"])
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "explorer_service.tasksets.digit_skills"]
    subprocess.run([*command, str(tmp_path / "b.jsonl"), "--count", "50", "--seed", "5"], check=True, timeout=60)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert lines == (tmp_path / "b.jsonl").read_text().splitlines()
    assert len(lines) == 50
    assert all(set(json.loads(line)) == {"prompt", "response"} for line in lines)


def test_the_mixing_is_splitmix64() -> None:
    # First outputs of the reference implementation for the seeds 0 and 1234567.
    assert mix(np.array([0, 1234567], np.uint64)).tolist() == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_a_permutation_has_everything_once_and_depends_on_each_part_of_its_key() -> None:
    orders = [permutation(1000, *key).tolist() for key in [(1, 2), (2, 1), (1, 3), (1,), (-1, 2)]]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
