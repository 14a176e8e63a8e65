"""`tandem demo`, as far as it is not `tandem up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.cli.demonstration import as_json, fresh_name
from common.cli.summary import StageSummary
from common.cli.up import RunResult
from common.errors import StorageFailed


def summary(stage: str, steps: int, versions: int, start: float | None, end: float | None) -> StageSummary:
    return StageSummary(
        stage=stage,
        steps=steps,
        reward_first=None,
        reward_last=None,
        held_out_start=start,
        held_out_end=end,
        published=None,
        explorer_versions=versions,
        train_tokens_per_s=None,
        rollout_tokens_per_s=None,
        staleness_mean=None,
        staleness_max=None,
        dropped=0,
        result=Path("runs/demo/main/result"),
    )


def test_a_demo_never_goes_on_with_an_earlier_one(tmp_path: Path) -> None:
    assert [fresh_name(tmp_path, "demo") for _ in range(3)] == ["demo", "demo-2", "demo-3"]
    assert fresh_name(tmp_path / "deeper", "demo") == "demo"


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="file/demo"):
        fresh_name(tmp_path / "file", "demo")


def test_the_json_is_of_the_stage_that_explored() -> None:
    result = RunResult(0, 12.3456, (summary("sft", 50, 0, None, None), summary("grpo", 100, 101, 0.25, 0.75)))
    assert as_json(result) == {
        "held_out_start": 0.25,
        "held_out_end": 0.75,
        "seconds": 12.35,
        "trainer_steps": 100,
        "explorer_versions": 101,
        "result": "runs/demo/main/result",
    }
