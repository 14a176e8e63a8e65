"""Both services run, or both end; with real processes that pretend to be the services."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from common.cli.child import Child, start_service
from common.cli.supervisor import Outcome, Patience, Supervisor
from tests.support.fake_service import install

SOON = Patience(own_cause=5.0, follow=0.5, drain=0.5)
LATER = Patience(own_cause=30.0, follow=30.0, drain=30.0)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[Child]]:
    """Starts a trainer and an explorer that behave as said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", install(tmp_path)["PYTHONPATH"])

    def start(trainer: str, explorer: str) -> list[Child]:
        monkeypatch.setenv("FAKE_TRAINER", trainer)
        monkeypatch.setenv("FAKE_EXPLORER", explorer)
        return [start_service(name, tmp_path / "c.yaml", tmp_path / "logs") for name in ("trainer", "explorer")]

    return start


async def ready(folder: Path, *names: str) -> None:
    """Returns when these fakes wait for signals."""
    async with asyncio.timeout(30):
        # A file of another process: there is nothing to be woken by.
        while not all((folder / f"{name}.signals").exists() for name in names):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


def signals(folder: Path, name: str) -> list[int]:
    return [int(line) for line in (folder / f"{name}.signals").read_text().split()]


async def supervise(children: list[Child], patience: Patience, notes: list[str] | None = None) -> Outcome:
    supervisor = Supervisor(children, (notes if notes is not None else []).append, patience)
    async with asyncio.timeout(60):
        return await supervisor.run()


async def test_the_exit_code_is_that_of_the_side_that_failed_and_the_other_is_stopped(
    start: Callable[[str, str], list[Child]],
) -> None:
    children = start("fail", "wait")
    outcome = await supervise(children, LATER)
    assert outcome.exit_code == 3
    (failure,) = outcome.failures
    assert failure.child.name == "trainer"
    assert failure.lines == ("run_failed (STORAGE_FAILED): the disk is full",)
    assert children[1].exit_code == 143


@pytest.mark.parametrize(("trainer", "explorer"), [("fail", "blame"), ("blame", "fail")])
async def test_the_side_with_a_cause_of_its_own_counts_whoever_ended_first(
    start: Callable[[str, str], list[Child]], trainer: str, explorer: str
) -> None:
    outcome = await supervise(start(trainer, explorer), LATER)
    assert outcome.exit_code == 3
    assert outcome.failures[0].lines == ("run_failed (STORAGE_FAILED): the disk is full",)


async def test_a_side_that_goes_on_though_the_other_blames_it_is_stopped(
    start: Callable[[str, str], list[Child]], tmp_path: Path
) -> None:
    children = start("wait", "blame")
    await ready(tmp_path, "trainer")
    outcome = await supervise(children, Patience(own_cause=0.2, follow=30.0, drain=30.0))
    assert outcome.exit_code == 1
    assert signals(tmp_path, "trainer") == [signal.SIGTERM]


async def test_a_signal_is_passed_on_once_to_both_and_is_the_exit_code(
    start: Callable[[str, str], list[Child]], tmp_path: Path
) -> None:
    children = start("wait", "wait")
    await ready(tmp_path, "trainer", "explorer")
    supervisor = Supervisor(children, [].append, LATER)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    supervisor.interrupt(signal.SIGINT)
    async with asyncio.timeout(30):
        outcome = await running
    assert (outcome.exit_code, outcome.failures, outcome.signal) == (130, (), signal.SIGINT)
    assert signals(tmp_path, "trainer") == signals(tmp_path, "explorer") == [signal.SIGINT]


async def test_a_second_signal_kills(start: Callable[[str, str], list[Child]], tmp_path: Path) -> None:
    children = start("stubborn", "stubborn")
    await ready(tmp_path, "trainer", "explorer")
    supervisor = Supervisor(children, [].append, LATER)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    supervisor.interrupt(signal.SIGTERM)
    supervisor.interrupt(signal.SIGTERM)
    async with asyncio.timeout(30):
        outcome = await running
    assert (outcome.exit_code, outcome.failures) == (143, ())
    assert [child.exit_code for child in children] == [137, 137]


async def test_a_drain_that_takes_too_long_is_ended(start: Callable[[str, str], list[Child]], tmp_path: Path) -> None:
    children = start("stubborn", "wait")
    await ready(tmp_path, "trainer", "explorer")
    notes: list[str] = []
    supervisor = Supervisor(children, notes.append, SOON)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    supervisor.interrupt(signal.SIGINT)
    async with asyncio.timeout(30):
        assert (await running).exit_code == 130
    assert [child.exit_code for child in children] == [137, 130]
    assert notes[-1] == "the trainer did not end within 0.50 s: killed"


async def test_an_explorer_that_outlives_a_finished_trainer_is_a_failure(
    start: Callable[[str, str], list[Child]], tmp_path: Path
) -> None:
    trainer, explorer = start("wait", "wait")
    await ready(tmp_path, "explorer")
    trainer.kill()
    await trainer.ended()
    finished = FinishedChild(trainer)
    outcome = await supervise([finished, explorer], SOON)
    assert outcome.exit_code == 1
    assert outcome.failures[0].child is explorer
    assert "after the trainer had finished" in outcome.failures[0].lines[0]
    assert signals(tmp_path, "explorer") == [signal.SIGTERM]


async def test_a_killed_side_is_said_to_be_killed(start: Callable[[str, str], list[Child]], tmp_path: Path) -> None:
    children = start("wait", "wait")
    await ready(tmp_path, "trainer", "explorer")
    children[1].kill()
    outcome = await supervise(children, LATER)
    assert outcome.exit_code == 137
    assert outcome.failures[0].child.name == "explorer"
    assert outcome.failures[0].lines[-1].startswith("killed by SIGKILL")
    assert signals(tmp_path, "trainer") == [signal.SIGTERM]


class FinishedChild(Child):
    """A child that has ended well."""

    def __init__(self, ended: Child) -> None:
        super().__init__(ended.name, ended._process, ended.log, 0)

    async def ended(self) -> int:
        return 0
