"""What a person sees of a run in progress."""

from __future__ import annotations

import io
import time

from rich.console import Console

from common.cli.display import LiveDisplay, PlainDisplay, make_display
from common.cli.picture import described, line, picture, sparkline
from common.cli.run_view import SILENT_SECONDS, RunView
from common.cli.words import clean, clock, duration, number, rate
from common.status import Wait
from tests.support.canned_status import explorer_status, trainer_status


def view() -> RunView:
    """At step 7 of 10, with both statuses from just now."""
    seen = RunView("canned", ("main",))
    seen.take_trainer(trainer_status())
    seen.take_explorer(explorer_status())
    seen.take_metrics(5, "trainer", {"reward/mean": 0.25, "buffer/dropped_stale": 2.0, "buffer/dropped_lineage": 1.0})
    seen.take_metrics(5, "explorer-0", {"eval/reward_mean": 0.125})
    seen.take_metrics(7, "trainer", {"reward/mean": 0.5, "sample/staleness_mean": 1.0, "time/sync_weight": 0.25})
    seen.take_metrics(7, "explorer-0", {"eval/reward_mean": 0.625})
    return seen


def text_of(seen: RunView, later: float = 0.0) -> str:
    file = io.StringIO()
    now = time.monotonic() + later
    Console(file=file, width=140).print(picture(seen, time.time() + later, now))
    return file.getvalue()


def test_a_line_says_how_far_both_sides_are() -> None:
    text = line(view(), time.time(), time.monotonic())
    for part in (
        "step 7/10",
        "reward 0.500",
        "held-out 0.625",
        "version 6 published, 6 applied",
        "staleness 1.0",
        "trainer waiting for experiences",
        "explorer waiting for sync 1,234 tok/s",
        "sync 0.25 s",
        "queue 3",
        "dropped 3",
        "the trainer waits for 8 groups, for ",
    ):
        assert part in text
    assert "\n" not in text


def test_the_picture_shows_the_same_and_the_way_of_the_held_out_reward() -> None:
    text = text_of(view())
    for part in (
        "canned",
        "step 7/10",
        "0.500",
        "0.125 → 0.625",
        "(step 7)",
        "published version 6",
        "a version after 6",
    ):
        assert part in text
    assert "waits for 8 groups" in text


def test_what_was_waited_for_long_ago_is_not_shown_as_if_it_went_on() -> None:
    assert "waits for" not in text_of(view(), later=SILENT_SECONDS + 1)


def test_a_service_that_has_fallen_silent_is_shown_so() -> None:
    assert "does not answer (was waiting for experiences)" in text_of(view(), later=SILENT_SECONDS + 1)
    stopping = view()
    stopping.stopping = True
    assert "ending (was waiting for experiences)" in text_of(stopping, later=SILENT_SECONDS + 1)


def test_a_process_that_has_ended_is_not_shown_as_working() -> None:
    seen = view()
    seen.trainer.exit_code, seen.explorer.exit_code = 0, 3
    text = text_of(seen)
    assert "ended with exit code 3" in text
    assert "waiting" not in text


def test_a_wait_says_for_what_since_when_and_until_when() -> None:
    assert described(Wait("8 groups", 100.0, 225.0), 105.0) == "8 groups, for 5 s, gives up in 2:00"
    assert described(Wait("Resume", 100.0, None), 3800.0) == "Resume, for 1:01:40"


def test_the_time_to_go_is_estimated_from_the_last_steps() -> None:
    seen = view()
    for _ in range(3):
        seen.take_metrics(7, "trainer", {"time/step": 20.0})
    assert "about 1:00 to go" in text_of(seen)
    seen.stopping = True
    assert "to go" not in text_of(seen)


def test_no_version_is_shown_as_applied_before_it_was_published() -> None:
    seen = view()
    status = explorer_status()
    status.policy_version.step = 7
    seen.take_explorer(status)
    assert "version 7 published, 7 applied" in line(seen, time.time(), time.monotonic())


def test_a_new_stage_starts_from_nothing() -> None:
    seen = view()
    status = trainer_status()
    status.stage, status.step = "second", 1
    seen.take_trainer(status)
    assert (seen.step, list(seen.rewards), seen.held_out, seen.dropped) == (1, [], [], 0)


def test_a_peers_text_cannot_steer_the_terminal() -> None:
    seen = view()
    status = explorer_status()
    status.reason = "\x1b]0;title\x07[bold]a\nb"
    seen.take_explorer(status)
    text = text_of(seen)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]a b" in text  # shown, not obeyed


def test_an_unknown_state_of_newer_software_is_shown_by_its_number() -> None:
    seen = view()
    status = trainer_status()
    status.state = 77  # type: ignore[assignment]
    seen.take_trainer(status)
    assert seen.trainer.state == "state 77"


def test_a_curve_of_blocks_goes_from_its_lowest_to_its_highest_value() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"  # 0.5 * 7 = 3.5, to even: the fifth
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline(range(100), width=4) == "▁▃▆█"  # means 12, 37, 62, 87: thirds of the span; 7/3 = 2.3, 14/3 = 4.7


def test_off_a_terminal_there_are_plain_lines_a_few_seconds_apart() -> None:
    file = io.StringIO()
    display = make_display(Console(file=file, width=40))
    assert isinstance(display, PlainDisplay)
    seen = view()
    display.show(seen)
    display.show(seen)
    display.note("something has happened")
    display.close()
    first, second = file.getvalue().splitlines()
    assert len(first) > 40  # one line, however narrow
    assert second == "something has happened"
    assert "\x1b" not in file.getvalue()


def test_on_a_terminal_the_picture_goes_away_and_notes_stay() -> None:
    file = io.StringIO()
    display = make_display(Console(file=file, width=100, force_terminal=True, color_system=None))
    assert isinstance(display, LiveDisplay)
    display.show(view())
    display.note("something has happened")
    display.close()
    assert "something has happened" in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K")  # rich erases its last picture


def test_numbers_and_times_read_well() -> None:
    assert [duration(value) for value in (-1, 0.42, 12.4, 185, 3723)] == ["0.00 s", "0.42 s", "12 s", "3:05", "1:02:03"]
    assert clock(7) == "0:07"
    assert (number(None), number(float("nan")), number(1.005, 1), rate(12345.6)) == ("-", "-", "1.0", "12,346 tok/s")
    assert clean("x" * 600) == "x" * 499 + "…"
