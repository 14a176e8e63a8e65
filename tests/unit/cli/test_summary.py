"""What a run has come to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from common.cli.summary import stage_records, summarize
from common.config.load import load_config
from common.config.root import TandemConfig
from common.monitor.build import metrics_folder
from common.monitor.jsonl import JsonlSink
from common.monitor.sink import MetricRecord


@pytest.fixture
def config(tmp_path: Path) -> TandemConfig:
    return load_config(None, ["model.path=somewhere", f"run.root={tmp_path}"], environ={})


def trainer(step: int, **values: float) -> MetricRecord:
    return MetricRecord(
        step, float(step), "trainer", {name.replace("__", "/"): value for name, value in values.items()}
    )


def explorer(step: int, **values: float) -> MetricRecord:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return MetricRecord(step, float(step), "explorer-0", named)


def test_a_stage_is_summed_up_from_its_records(config: TandemConfig) -> None:
    records = [
        explorer(0, eval__reward_mean=0.25, eval__policy_version=0.0),
        trainer(
            1, reward__mean=0.2, sample__staleness_mean=0.0, sample__staleness_max=0.0, sync__published_version=1.0
        ),
        explorer(1, explore__policy_version=0.0, throughput__rollout_tokens_per_s=100.0),
        explorer(1, explore__policy_version=1.0, throughput__rollout_tokens_per_s=300.0),
        trainer(
            2, reward__mean=0.6, sample__staleness_mean=1.0, sample__staleness_max=3.0, sync__published_version=2.0
        ),
        trainer(3, reward__mean=math.nan, throughput__train_tokens_per_s=50.0, buffer__dropped_stale=4.0),
        explorer(3, eval__reward_mean=0.75, eval__policy_version=3.0),
    ]
    summary = summarize(config, records)
    assert summary.steps == 3
    assert (summary.reward_first, summary.reward_last) == (0.2, 0.6)
    assert (summary.held_out_start, summary.held_out_end) == (0.25, 0.75)
    assert summary.published == 3  # after the last step's record: the last evaluation ran on it
    assert summary.explorer_versions == 3  # 0, 1 and 3
    assert (summary.rollout_tokens_per_s, summary.train_tokens_per_s) == (200.0, 50.0)
    assert (summary.staleness_mean, summary.staleness_max, summary.dropped) == (0.5, 3.0, 4)
    assert summary.result is None
    rows = summary.rows()
    assert rows["held-out reward, start and end"] == "0.250 → 0.750"
    assert rows["staleness, mean and most"] == "0.50, 3 steps"


def test_a_stage_without_explorers_has_no_empty_rows(config: TandemConfig) -> None:
    rows = summarize(config, [trainer(1, loss__total=2.0, throughput__train_tokens_per_s=10.0)]).rows()
    assert rows == {"steps": "1", "trainer, mean": "10 tok/s", "result": "none"}


def test_nothing_measured_is_no_error(config: TandemConfig) -> None:
    assert stage_records(config) == []
    assert summarize(config, []).steps == 0


def test_the_result_is_named_when_it_is_there(config: TandemConfig) -> None:
    (config.stage_folder / "result").mkdir(parents=True)
    assert summarize(config, []).rows()["result"] == str(config.stage_folder / "result")


def test_records_are_read_from_the_trainers_metrics(config: TandemConfig) -> None:
    sink = JsonlSink(metrics_folder(config) / "trainer.jsonl")
    sink.log(1, 2.0, "trainer", {"reward/mean": 0.5})
    sink.close()
    assert stage_records(config) == [MetricRecord(1, 2.0, "trainer", {"reward/mean": 0.5})]
