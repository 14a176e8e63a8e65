"""Your own task and reward: write a sentence of exactly so many words.

Name this module in `plugins`, then `taskset: {name: count_words, reward: word_count}`.
"""

from collections.abc import Mapping

from explorer_service.rewards import REWARDS
from explorer_service.tasksets import TASKSETS, Task, TaskList

TOPICS = ("rivers", "bread", "the moon", "trains")


@TASKSETS.register("count_words")
def count_words(shortest: int = 3, longest: int = 12) -> TaskList:
    """One task for each topic and length; the arguments are the config's `taskset.options`."""
    return TaskList(
        Task(f"{topic}-{words}", f"In {words} words, {topic} are", answer=str(words))
        for topic in TOPICS
        for words in range(shortest, longest + 1)
    )


@REWARDS.register("word_count")
def word_count(task: Task, response: str) -> Mapping[str, float]:
    """1 for the right number of words, less for each word that is missing or too many; the rest become metrics."""
    words, wanted = len(response.split()), int(task.answer or 0)
    return {"reward": max(0.0, 1 - abs(words - wanted) / wanted), "words": words, "exact": words == wanted}
