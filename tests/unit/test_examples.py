from common.config.explorer import ExplorerConfig, TasksetConfig
from common.registry import load_plugins
from explorer_service.group_runner import GroupRunner
from explorer_service.parts import build_taskset
from tests.support.fake_policy import AnsweringEngine, CharacterTokenizer


async def test_your_own_task_and_reward_run_as_a_plugin() -> None:
    load_plugins(["examples.word_count_task"])
    config = TasksetConfig(name="count_words", options={"shortest": 3, "longest": 5}, reward="word_count")
    taskset = build_taskset(config)
    assert len(taskset) == 4 * 3
    task = taskset.task(1)
    assert task.prompt == "In 4 words, rivers are"
    replies = [" long", " long and cold", " long, cold and wet", " one two three four five six seven eight nine"]
    engine = AnsweringEngine(lambda text, call, sample: replies[sample])
    runner = GroupRunner(engine, CharacterTokenizer(), config, ExplorerConfig(group_size=4))
    group = await runner.run(task, ordinal=0, explore_step=1, seed=0)
    # 1, 3, 4 and 9 words where 4 are asked for: 1 - 3/4, 1 - 1/4, 1, max(0, 1 - 5/4).
    assert [experience.reward for experience in group.experiences] == [0.25, 0.75, 1.0, 0.0]
    assert group.metrics == {"exact": 0.25, "words": 4.25}
