from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog

from common.config.root import TandemConfig
from common.errors import ConfigError, StorageFailed
from common.monitor.build import build_sinks
from common.monitor.jsonl import JsonlSink, read_records
from common.monitor.monitor import Monitor
from common.monitor.sink import SINKS


class Kept:
    def __init__(self, *, fails: bool = False) -> None:
        self.records: list[tuple[int, float, str, dict[str, float]]] = []
        self.closed = 0
        self.fails = fails

    def log(self, step: int, time: float, source: str, values: Mapping[str, float]) -> None:
        if self.fails:
            raise StorageFailed("full")
        self.records.append((step, time, source, dict(values)))

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise StorageFailed("still full")


def test_every_sink_gets_every_record() -> None:
    sinks = [Kept(), Kept()]
    monitor = Monitor(sinks)
    monitor.log(1, 2.0, "trainer", {"a": 1.0})
    monitor.close()
    monitor.close()
    for sink in sinks:
        assert sink.records == [(1, 2.0, "trainer", {"a": 1.0})]
        assert sink.closed == 1


def test_a_sink_that_fails_does_not_rob_the_others_and_is_heard() -> None:
    good = Kept()
    monitor = Monitor([Kept(fails=True), good])
    with pytest.raises(StorageFailed):
        monitor.log(1, 2.0, "trainer", {"a": 1.0})
    with pytest.raises(StorageFailed):
        monitor.close()
    assert len(good.records) == 1
    assert good.closed == 1
    assert monitor.latest("trainer") == {"a": 1.0}


def test_latest_is_the_newest_value_of_each_metric_of_that_source() -> None:
    monitor = Monitor()
    monitor.log(1, 2.0, "trainer", {"a": 1.0, "b": 2.0})
    monitor.log(2, 3.0, "trainer", {"a": 5.0})
    monitor.log(2, 3.0, "explorer-0", {"a": 7.0})
    assert monitor.latest("trainer") == {"a": 5.0, "b": 2.0}
    assert monitor.latest("explorer-0") == {"a": 7.0}
    assert monitor.latest("nobody") == {}
    assert monitor.sources() == ["explorer-0", "trainer"]


def test_newest_values_are_bounded_and_known_ones_stay_current() -> None:
    monitor = Monitor()
    monitor.log(1, 2.0, "trainer", {"reward/mean": 0.1})
    with structlog.testing.capture_logs() as logs:
        for step in range(3):
            monitor.log(step, 2.0, "trainer", {f"{step}/{index}": 0.0 for index in range(1000)} | {"reward/mean": 0.5})
    assert len(monitor.latest("trainer")) == 1024
    assert monitor.latest("trainer")["reward/mean"] == 0.5
    assert len(logs) == 1


async def test_a_subscriber_sees_what_is_logged_from_then_on() -> None:
    monitor = Monitor()
    monitor.log(1, 1.0, "trainer", {})
    subscription = monitor.subscribe()
    monitor.log(2, 2.0, "trainer", {"a": 1.0})
    monitor.log(3, 3.0, "trainer", {})
    monitor.close()
    assert [record.step async for record in subscription] == [2, 3]
    assert subscription.take_lost() == 0


async def test_a_subscriber_that_waits_is_woken_by_another_thread() -> None:
    monitor = Monitor()
    subscription = monitor.subscribe()
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0)
    thread = threading.Thread(target=monitor.log, args=(7, 1.0, "trainer", {}))
    thread.start()
    record = await asyncio.wait_for(waiting, timeout=10)
    thread.join()
    assert record.step == 7


async def test_a_slow_subscriber_loses_the_oldest_records_and_learns_how_many() -> None:
    monitor = Monitor()
    subscription = monitor.subscribe(backlog=3)
    for step in range(10):
        monitor.log(step, 1.0, "trainer", {})
    assert subscription.take_lost() == 7
    assert subscription.take_lost() == 0
    monitor.close()
    assert [record.step async for record in subscription] == [7, 8, 9]


async def test_a_closed_subscription_gets_nothing_more() -> None:
    monitor = Monitor()
    subscription = monitor.subscribe()
    subscription.close()
    monitor.log(1, 1.0, "trainer", {})
    assert [record async for record in subscription] == []
    assert not monitor._subscriptions


async def test_a_subscription_to_a_closed_monitor_ends_at_once() -> None:
    monitor = Monitor()
    monitor.close()
    assert [record async for record in monitor.subscribe()] == []


def config(tmp_path: Path, *sinks: str) -> TandemConfig:
    sections = {"model": {"path": "x"}, "run": {"root": tmp_path, "name": "r"}, "monitor": {"sinks": sinks}}
    return TandemConfig.model_validate(sections)


def test_sinks_are_built_in_the_folder_of_the_stage(tmp_path: Path) -> None:
    monitor = Monitor(build_sinks(config(tmp_path, "jsonl", "tensorboard"), "trainer"))
    monitor.log(1, 2.0, "explorer-0", {"a": 1.0})
    monitor.close()
    folder = tmp_path / "r" / "main" / "metrics"
    assert len(read_records(folder / "trainer.jsonl")) == 1
    assert list((folder / "tensorboard" / "trainer" / "explorer-0").iterdir())


def test_a_plugin_adds_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SINKS, "_parts", dict(SINKS._parts))
    SINKS.register("kept")(lambda folder, service: Kept())
    (sink,) = build_sinks(config(tmp_path, "kept"), "trainer")
    assert isinstance(sink, Kept)


def test_an_unknown_sink_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown metric sink 'jsonll'; known are jsonl, tensorboard"):
        build_sinks(config(tmp_path, "jsonll"), "trainer")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("in the way")
    with pytest.raises(StorageFailed, match="metrics folder"):
        build_sinks(config(tmp_path, "jsonl"), "trainer")


def test_sinks_that_were_made_are_closed_when_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Kept()

    def broken(folder: Path, service: str) -> JsonlSink:
        raise StorageFailed("broken")

    monkeypatch.setattr(SINKS, "_parts", {"kept": lambda folder, service: made, "broken": broken})
    with pytest.raises(StorageFailed):
        build_sinks(config(tmp_path, "kept", "broken"), "trainer")
    assert made.closed == 1
