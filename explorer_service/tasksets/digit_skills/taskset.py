"""The tasks."""

from __future__ import annotations

import xxhash

from common.errors import ConfigError
from explorer_service.tasksets.base import Task
from explorer_service.tasksets.digit_skills.skills import SKILLS, Split, split_values
from explorer_service.tasksets.mixing import permutation
from explorer_service.tasksets.registry import TASKSETS


@TASKSETS.register("digit_skills")
class DigitSkills:
    """`count` different pairs of skill and digits of one split, drawn by `seed`; all of them when `count` is None."""

    def __init__(self, split: Split = "train", digits: int = 4, count: int | None = None, seed: int = 0) -> None:
        values = split_values(digits, split)
        pairs = len(values) * len(SKILLS)
        if not pairs:
            raise ConfigError(f"digit_skills: no string of {digits} digits is in the split {split!r}")
        if count is not None and not 1 <= count <= pairs:
            raise ConfigError(f"digit_skills: `count` is {count}, there are 1 to {pairs} tasks to choose from")
        self._digits = digits
        self._values = values
        self._pairs = permutation(pairs, seed)[:count]

    def __len__(self) -> int:
        return len(self._pairs)

    def task(self, index: int) -> Task:
        """The task at that position; its name is its prompt."""
        value, skill = divmod(int(self._pairs[index]), len(SKILLS))
        letter = tuple(SKILLS)[skill]
        digits = f"{self._values[value]:0{self._digits}d}"
        prompt = f"{letter}{digits}="
        return Task(prompt, prompt, SKILLS[letter](digits), {"skill": letter})

    @property
    def fingerprint(self) -> str:
        """Hash over the chosen pairs."""
        state = xxhash.xxh3_128(f"digit_skills {self._digits} {''.join(SKILLS)}\n".encode())
        state.update((self._values[self._pairs // len(SKILLS)] * len(SKILLS) + self._pairs % len(SKILLS)).tobytes())
        return state.hexdigest()
