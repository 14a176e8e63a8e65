"""Examples that teach the skills and the format, but not which letter asks for which skill."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from explorer_service.tasksets.digit_skills.skills import SKILLS, split_values


def supervised_examples(count: int, seed: int, digits: int = 4) -> Iterator[dict[str, str]]:
    """Yields `count` examples (`prompt`, `response`) from the train split.

    The response applies a uniformly random skill, independent of the prompt's letter: what it learns from them answers
    right about one time in four, and a reward has the rest to teach.
    """
    random = np.random.default_rng(seed)
    letters = tuple(SKILLS)
    values = random.choice(split_values(digits, "train"), count)
    asked = random.integers(len(letters), size=count)
    applied = random.integers(len(letters), size=count)
    for value, letter, skill in zip(values.tolist(), asked.tolist(), applied.tolist(), strict=True):
        text = f"{value:0{digits}d}"
        yield {"prompt": f"{letters[letter]}{text}=", "response": SKILLS[letters[skill]](text)}
