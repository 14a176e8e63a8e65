"""A service whose event loop hangs while its connections stay up: the other side finds it out, and ends with the cause."""

from pathlib import Path

import pytest

from tests.support import hang_plugin
from tests.support.pair import processes
from tests.support.pair_config import pair_settings

pytestmark = [pytest.mark.slow_faults, pytest.mark.timeout(300)]

SETTINGS = {
    "plugins": ["tests.support.reward_plugin", "tests.support.hang_plugin"],
    "trainer": {"total_steps": None, "experience_timeout": 5},
    "explorer": {"peer_timeout": 12, "join_timeout": 150},
    "monitor": {"log_format": "json"},
}


async def test_an_explorer_whose_trainer_hangs_ends_and_says_for_what_it_waited(tmp_path: Path) -> None:
    async with processes(tmp_path, pair_settings(tmp_path / "runs", SETTINGS)) as pair:
        pair.start("trainer", environment={hang_plugin.TRAINER: "2"})
        explorer = pair.start("explorer")
        assert await explorer.ended() == 1
        (failed,) = [event for event in explorer.events if event["event"] == "run_failed"]
    assert "the trainer is connected and has not answered for" in failed["error"]
    assert "while this explorer waits for" in failed["error"]


async def test_a_trainer_whose_explorer_hangs_ends_and_says_for_what_it_waited(tmp_path: Path) -> None:
    async with processes(tmp_path, pair_settings(tmp_path / "runs", SETTINGS)) as pair:
        trainer = pair.start("trainer")
        pair.start("explorer", environment={hang_plugin.EXPLORER: "2"})
        assert await trainer.ended() == 1
        (failed,) = [event for event in trainer.events if event["event"] == "run_failed"]
    assert "waited 5 seconds for 2 groups" in failed["error"]
