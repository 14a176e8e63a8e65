from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from common.config.root import TandemConfig
from common.config.stages import explorer_stage_configs, result_folder, stage_configs
from common.errors import ConfigError


def config(*stages: dict[str, Any], **sections: Any) -> TandemConfig:
    return TandemConfig.model_validate({"model": {"path": "base"}, **sections, "stages": stages})


def test_without_stages_the_configuration_is_the_only_stage() -> None:
    whole = config()
    assert stage_configs(whole) == [whole]
    assert whole.stage_name == "main"


def test_a_stage_overrides_key_by_key_and_keeps_the_rest() -> None:
    first, second = stage_configs(
        config(
            {"name": "sft", "algorithm": {"optimizer": {"lr": 1e-3}}, "explorer": {"sampling": {"stop": ["x"]}}},
            {"name": "rl", "trainer": {"total_steps": 9}},
            algorithm={"optimizer": {"lr": 1e-4, "warmup_steps": 5}},
            explorer={"sampling": {"stop": ["a", "b"]}},
        )
    )
    assert (first.stage_name, second.stage_name) == ("sft", "rl")
    assert (first.algorithm.optimizer.lr, first.algorithm.optimizer.warmup_steps) == (1e-3, 5)
    assert first.explorer.sampling.stop == ("x",)
    assert (second.algorithm.optimizer.lr, second.trainer.total_steps) == (1e-4, 9)
    assert second.stages == ()


def test_a_later_stage_starts_from_the_result_of_the_one_before() -> None:
    first, second, third = stage_configs(
        config(
            {"name": "a"},
            {"name": "b"},
            {"name": "c", "model": {"path": "other", "tokenizer": "t"}},
            run={"name": "r", "root": "/runs"},
            model={"architecture": {"model_type": "llama"}, "tokenizer": "characters:ab", "dtype": "bfloat16"},
        )
    )
    assert first.model.architecture == {"model_type": "llama"}
    assert result_folder(first) == Path("/runs/r/a/result")
    assert second.model.path == "/runs/r/a/result"
    assert second.model.tokenizer is None
    assert second.model.architecture is None
    assert second.model.dtype == "bfloat16"
    assert (third.model.path, third.model.tokenizer) == ("other", "t")


def test_a_stage_with_its_own_architecture_does_not_inherit_a_path() -> None:
    stage = {"name": "a", "model": {"architecture": {"model_type": "llama"}, "tokenizer": "characters:ab"}}
    (only,) = stage_configs(config(stage))
    assert only.model.path is None


def test_a_stage_that_keeps_no_result_cannot_be_built_upon() -> None:
    never = {"name": "a", "checkpoint": {"save_hf_checkpoint": "never"}}
    with pytest.raises(ConfigError, match=r"stage 'b'.*stage 'a'.*`never`"):
        stage_configs(config(never, {"name": "b"}))
    assert len(stage_configs(config(never, {"name": "b", "model": {"path": "other"}}))) == 2


def test_each_stage_has_its_own_checkpoints_below_an_explicit_root() -> None:
    first, second = stage_configs(config({"name": "a"}, {"name": "b"}, checkpoint={"root": "/shared"}))
    assert (first.checkpoint_root, second.checkpoint_root) == (Path("/shared/a"), Path("/shared/b"))


def test_stages_that_share_a_checkpoint_folder_are_refused() -> None:
    same = {"checkpoint": {"root": "/shared"}}
    with pytest.raises(ConfigError, match=r"stage 'b'.*already that of stage 'a'"):
        stage_configs(config({"name": "a", **same}, {"name": "b", **same}))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (({},), "stage 1 needs a `name`"),
        (({"name": 5},), "stage 1 needs a `name`"),
        (({"name": "a"}, {"name": "a"}), "two stages are named 'a'"),
        (({"name": "a", "run": {"seed": 1}},), "stage 'a': `run` holds for the whole run"),
        (({"name": "a", "plugins": []},), "stage 'a': `plugins` holds for the whole run"),
        (({"name": "a", "stages": []},), "stage 'a': `stages` holds for the whole run"),
        (({"name": "../a"},), "stage '../a': `stage_name`"),
        (({"name": "a", "trainer": {"batch_sise": 2}},), "stage 'a': unknown key `trainer.batch_sise`; did you mean"),
        (({"name": "a", "trainer": {"batch_size": 0}},), "stage 'a': `trainer.batch_size`: 0 is not allowed"),
        (({"name": "a", "model": None},), "stage 'a': `model` must hold keys"),
    ],
)
def test_a_mistake_in_a_stage_names_the_stage(stages: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stage_configs(config(*stages))
    assert message in caught.value.message


def test_an_explorer_makes_its_model_from_the_source_and_waits_out_a_stage_on_a_file() -> None:
    """The result folder of the stage before is the trainer's; an explorer on another machine never sees it."""
    whole = TandemConfig.model_validate(
        {
            "model": {"architecture": {"model_type": "llama"}, "tokenizer": "characters:ab", "max_length": 8},
            "stages": [
                {
                    "name": "sft",
                    "algorithm": {"name": "sft"},
                    "buffer": {"source": "file", "path": "x.jsonl", "epochs": 1},
                },
                {"name": "grpo", "model": {"rollout_dtype": "bfloat16"}},
                {"name": "more"},
            ],
        }
    )
    _, grpo, more = explorer_stage_configs(whole)
    for stage in (grpo, more):
        assert stage.model.path is None
        assert stage.model.architecture == {"model_type": "llama"}
        assert stage.model.tokenizer == "characters:ab"
    assert grpo.model.rollout_dtype == "bfloat16"
    assert grpo.explorer.join_timeout == math.inf
    assert more.explorer.join_timeout is None
