from __future__ import annotations

import base64
import math
from html.parser import HTMLParser
from pathlib import Path

import pytest

from common.cli.plot import curve
from common.cli.report import write_report
from common.errors import StorageFailed
from common.monitor.sink import MetricRecord

PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def records() -> list[MetricRecord]:
    training = [
        MetricRecord(step, float(step), "trainer", {"reward/mean": step / 50, "sample/staleness_mean": 1.0})
        for step in range(1, 50)
    ]
    held_out = [MetricRecord(step, float(step), "explorer-0", {"eval/reward_mean": step / 60}) for step in (0, 25, 49)]
    return training + held_out


def test_the_page_needs_nothing_beside_itself_and_shows_the_same_plot(tmp_path: Path) -> None:
    write_report(tmp_path / "run", records(), "a run", {"held out at the end": 0.123456, "steps": 49}, "run: {name: x}")
    picture = (tmp_path / "run" / "reward.png").read_bytes()
    assert picture.startswith(PNG)
    page = Page((tmp_path / "run" / "report.html").read_text())
    (source,) = page.sources
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture
    for word in ("a run", "held out at the end", "0.1235", "49", "run: {name: x}", "Effective configuration"):
        assert word in page.words
    assert "details" in page.tags


def test_text_of_a_run_cannot_become_markup(tmp_path: Path) -> None:
    write_report(tmp_path, records(), "<script>x", {"<b>": "<img src=x>"}, "</pre><script>")
    page = Page((tmp_path / "report.html").read_text())
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert len(page.sources) == 1


def test_a_title_is_plain_text(tmp_path: Path) -> None:
    write_report(tmp_path, records(), r"a_b $\frac{$", {})
    assert (tmp_path / "reward.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "kept",
    [
        [],
        [MetricRecord(1, 1.0, "trainer", {"reward/mean": 0.5})],
        [MetricRecord(1, 1.0, "trainer", {"reward/mean": math.nan})],
        [MetricRecord(1, 1.0, "trainer", {"reward/mean": -5.0, "sync/published_version": 1.0, "sync/applied_version": 0.0})],
    ],
    ids=["nothing", "one step", "not finite", "versions"],
)  # fmt: skip
def test_a_run_with_little_to_show_still_has_a_report(tmp_path: Path, kept: list[MetricRecord]) -> None:
    write_report(tmp_path, kept, "short", {})
    assert (tmp_path / "reward.png").read_bytes().startswith(PNG)


def test_steps_trained_again_after_a_crash_are_drawn_once_with_their_newest_value() -> None:
    logged = [(1, 10.0, 0.1), (2, 11.0, 0.2), (3, 12.0, 0.3), (2, 20.0, 0.5), (3, 21.0, 0.6)]
    found = curve([MetricRecord(step, time, "trainer", {"a": value}) for step, time, value in logged], "a")
    assert list(found.steps) == [1, 2, 3]
    assert list(found.values) == [0.1, 0.5, 0.6]


def test_a_folder_that_cannot_be_written_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="report in"):
        write_report(tmp_path / "file", records(), "x", {})
