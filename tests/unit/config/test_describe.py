from __future__ import annotations

from typing import Any

import pytest

from common.config.describe import describe_sync, sync_policy
from common.config.root import TandemConfig
from common.errors import ConfigError
from common.sync.policy import Style


def config(**sections: Any) -> TandemConfig:
    return TandemConfig.model_validate({"model": {"path": "base"}, **sections})


def test_the_policy_takes_its_numbers_from_their_sections() -> None:
    policy = sync_policy(
        config(
            sync={"style": "fully_async", "interval": 3, "explorer_interval": 2, "offset": 1, "max_staleness": 4},
            trainer={"batch_size": 16},
            explorer={"batch_size": 4},
            buffer={"max_groups": 99},
        )
    )
    assert policy.style is Style.FULLY_ASYNC
    assert (policy.trainer_interval, policy.explorer_interval, policy.offset) == (3, 2, 1)
    assert (policy.groups_per_train_step, policy.groups_per_explore_step) == (16, 4)
    assert (policy.max_staleness, policy.max_inflight_batches, policy.max_queued_groups) == (4, 2, 99)


@pytest.mark.parametrize(
    ("interval", "offset", "staleness"),
    # Explore step s runs on version M max(0, (s - 1 - n) div M) and is trained at step s: at most n + M - 1 apart.
    [(1, 0, "0 steps: on-policy"), (1, 1, "1 step."), (2, 0, "1 step."), (4, 2, "5 steps.")],
)
def test_fixed_names_the_staleness_that_the_schedule_gives(interval: int, offset: int, staleness: str) -> None:
    text = describe_sync(config(sync={"interval": interval, "offset": offset}))
    assert f"Staleness is at most {staleness}" in text


def test_each_style_says_what_the_explorer_does() -> None:
    def says(style: str) -> str:
        return describe_sync(config(sync={"style": style, "interval": 2}, explorer={"trainer": "trainer:1"}))

    assert "waits until a newer version is applied" in says("fixed")
    assert "without waiting" in says("trainer_driven")
    assert "asks the trainer" in says("explorer_driven")
    assert "whenever it comes" in says("fully_async")
    assert "8 tasks x 8 rollouts" in says("fixed")
    with pytest.raises(ConfigError, match=r"explorer\.trainer"):
        sync_policy(config(sync={"style": "explorer_driven"}))


def test_supervised_training_from_a_file_has_no_sync() -> None:
    text = describe_sync(config(buffer={"source": "file", "path": "x.jsonl", "epochs": 1, "max_groups": 1}))
    assert text.startswith("no sync")


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"explorer": {"batch_size": 4}}, ("4 groups", "8 groups", "from the start")),
        ({"sync": {"trainer_interval": 2}}, ("8 groups", "16 groups", "after trainer step 1")),
        ({"sync": {"interval": 3, "max_staleness": 1}}, ("`sync.max_staleness` 1", "step 3")),
        ({"buffer": {"max_groups": 7}}, ("`buffer.max_groups` 7", "`trainer.batch_size` 8")),
    ],
)
def test_settings_that_would_hang_are_refused_with_their_numbers(
    sections: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        sync_policy(config(**sections))
    for part in parts:
        assert part in caught.value.message


def test_more_explorers_can_make_what_one_cannot() -> None:
    half = {"explorer": {"batch_size": 4}}
    assert sync_policy(config(**half, trainer={"min_explorers": 2}))
    assert sync_policy(config(**half, explorers=[{"address": "a:1"}, {"address": "b:1"}]))


def test_a_hang_names_the_stage() -> None:
    with pytest.raises(ConfigError, match=r"^stage 'rl': "):
        sync_policy(config(stage_name="rl", explorer={"batch_size": 4}))
