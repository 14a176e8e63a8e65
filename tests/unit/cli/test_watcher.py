"""The view of a run is fed by both services, whatever happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from common.cli.run_view import RunView
from common.cli.watcher import Watcher
from common.config.root import LimitsConfig
from common.config.security import SecurityConfig
from protos.tandem.v1 import trainer_pb2
from tests.support.canned_status import ExplorerServicer, TrainerServicer, add


class CountingTrainer(TrainerServicer):
    """Counts how often it was asked, and for what."""

    def __init__(self) -> None:
        self.streams = 0
        self.questions = 0

    def GetStatus(self, request: Any, context: Any) -> trainer_pb2.TrainerServiceGetStatusResponse:  # noqa: N802
        self.questions += 1
        return super().GetStatus(request, context)

    def WatchMetrics(self, request: Any, context: Any) -> Iterator[trainer_pb2.WatchMetricsResponse]:  # noqa: N802
        self.streams += 1
        return super().WatchMetrics(request, context)


def serve(servicer: TrainerServicer | ExplorerServicer) -> tuple[grpc.Server, str]:
    server = grpc.server(ThreadPoolExecutor(4))
    add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def trainer() -> Iterator[tuple[CountingTrainer, str]]:
    servicer = CountingTrainer()
    server, address = serve(servicer)
    yield servicer, address
    server.stop(None).wait(5)


async def watch(view: RunView, trainer: str, explorer: str, until: Callable[[], bool]) -> None:
    watching = asyncio.create_task(Watcher(view, trainer, explorer, LimitsConfig(), SecurityConfig()).run())
    try:
        async with asyncio.timeout(30):
            while not until():
                assert not watching.done(), watching
                await asyncio.sleep(0.02)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_the_view_gets_status_and_metrics_of_both(trainer: tuple[CountingTrainer, str]) -> None:
    server, explorer = serve(ExplorerServicer())
    view = RunView("canned", ("main",))
    await watch(view, trainer[1], explorer, lambda: view.explore_step > 0 and view.total == 10 and bool(view.held_out))
    server.stop(None).wait(5)
    assert (view.step, view.queued_groups, view.explore_step) == (7, 3, 8)
    assert view.trainer.tokens_per_s == 4321.0
    assert view.explorer.tokens_per_s == 1234.0
    assert view.held_out[0] == (7, 0.625)


async def test_metrics_are_asked_for_again_when_a_stage_has_ended(trainer: tuple[CountingTrainer, str]) -> None:
    servicer, address = trainer
    view = RunView("canned", ("main",))
    await watch(view, address, "127.0.0.1:1", lambda: servicer.streams >= 2)
    assert servicer.questions <= 5  # not asked more often than once a second


async def test_a_service_that_is_not_there_is_no_error(trainer: tuple[CountingTrainer, str]) -> None:
    view = RunView("canned", ("main",))
    await watch(view, trainer[1], "127.0.0.1:1", lambda: view.total == 10)
    assert view.explorer.answered is None
    assert view.explorer.state == "starting"
