"""The schedule at work: what the machine orders is exported, delivered, granted and answered."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch

from common.changes import Changes
from common.errors import NonFiniteWeights, PeerUnavailable, WaitTimedOut
from common.status import StatusBoard
from common.sync.events import (
    ExplorerJoined,
    ExplorerLeft,
    RunEnding,
    SyncRequested,
    TasksCounted,
    TrainStepDone,
    TrainStepStarted,
    WeightsDelivered,
)
from common.sync.policy import Style, SyncPolicy
from common.weights.manifest import build_manifest
from common.weights.version import PolicyVersion
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.engine.worker import EngineWorker
from trainer_service.publish.publication import Publication, Published
from trainer_service.sync_driver import SyncDriver, published_version


class Counting:
    """An engine whose only weight is the number of steps done, and a publisher that may refuse."""

    def __init__(self) -> None:
        self.value = 0.0
        self.refuses = False

    def export_weights(self) -> WeightsSnapshot:
        tensors = {"w": torch.tensor([self.value])}
        return WeightsSnapshot(build_manifest(tensors), tensors["w"].view(torch.uint8))

    async def prepare(self, step: int, snapshot: WeightsSnapshot) -> Published:
        if self.refuses:
            raise NonFiniteWeights("tensor 'w' is not finite")
        return Published(PolicyVersion(1, step, snapshot.manifest.manifest_hash), snapshot, None)


class Link:
    def __init__(self) -> None:
        self.credit = 0
        self.deliveries: list[Publication] = []

    def grant(self, count: int, min_step: int) -> None:
        self.credit += count

    def repeat_window(self, step: int) -> None:
        raise AssertionError(f"nothing is lost here, and version {step} is to be repeated")

    def deliver(self, publication: Publication) -> None:
        self.deliveries.append(publication)


class Driven:
    def __init__(self, style: Style, timeout: float = 30) -> None:
        self.engine = Counting()
        self.worker = EngineWorker()
        self.stopping = False
        self.status: StatusBoard[int] = StatusBoard(0)
        parts: Any = self.engine
        self.driver = SyncDriver(
            SyncPolicy(style=style),
            parts,
            parts,
            self.worker,
            self.status,
            Changes(),
            step=0,
            timeout=timeout,
            min_explorers=1,
            interrupted=lambda: self.stopping,
        )
        self.link = Link()
        self.driver.links["e"] = self.link

    def join(self) -> None:
        self.driver.feed(ExplorerJoined("e", applied=None, started=0, received=0, gone=0))
        self.driver.feed(TasksCounted(None))

    async def train(self) -> None:
        """One step; the weights change in the worker, as they do for real."""
        self.driver.feed(TrainStepStarted(()))
        await self.worker.submit(self._step)
        self.driver.feed(TrainStepDone())

    def _step(self) -> None:
        self.engine.value += 1


@pytest_asyncio.fixture
async def fixed() -> AsyncIterator[Driven]:
    driven = Driven(Style.FIXED, timeout=0.05)
    yield driven
    driven.driver.close()
    driven.worker.close()


async def test_a_version_is_exported_before_any_later_step_changes_it(fixed: Driven) -> None:
    fixed.join()
    (publication,) = fixed.link.deliveries
    later = fixed.worker.submit(fixed._step)  # submitted before the event loop had a turn
    published = await publication.ready
    await later
    assert published.snapshot is not None
    assert published.snapshot.data.view(torch.float32).tolist() == [0.0]
    assert published_version(fixed.driver) == published.version


async def test_credit_comes_after_the_weights(fixed: Driven) -> None:
    fixed.join()
    assert fixed.link.credit == 0
    fixed.driver.feed(WeightsDelivered("e", 0))
    assert fixed.link.credit > 0


async def test_no_step_starts_while_a_due_version_waits_for_the_one_before(fixed: Driven) -> None:
    fixed.join()
    await fixed.driver.until_may_train()
    await fixed.train()
    with pytest.raises(WaitTimedOut, match="e to apply version 0 before version 1 is published"):
        await fixed.driver.until_may_train()
    fixed.driver.feed(WeightsDelivered("e", 0))
    await fixed.driver.until_may_train()
    assert [publication.step for publication in fixed.link.deliveries] == [0, 1]


async def test_a_stop_ends_the_wait(fixed: Driven) -> None:
    fixed.join()
    await fixed.train()
    fixed.stopping = True
    await fixed.driver.until_may_train()


async def test_a_publication_that_fails_fails_the_run(fixed: Driven) -> None:
    fixed.engine.refuses = True
    fixed.join()
    await asyncio.wait([fixed.link.deliveries[0].ready])
    with pytest.raises(NonFiniteWeights):
        fixed.driver.raise_failure()
    with pytest.raises(NonFiniteWeights):
        await fixed.driver.until_delivered()


async def test_the_end_waits_until_the_final_weights_are_applied(fixed: Driven) -> None:
    fixed.join()
    fixed.driver.feed(WeightsDelivered("e", 0))
    await fixed.train()
    fixed.driver.feed(RunEnding())
    with pytest.raises(WaitTimedOut, match="version 1 to be applied everywhere"):
        await fixed.driver.until_delivered()
    fixed.driver.feed(WeightsDelivered("e", 1))
    await fixed.driver.until_delivered()


async def test_an_explorer_that_asks_is_answered_or_told_that_its_stream_broke() -> None:
    driven = Driven(Style.EXPLORER_DRIVEN)
    driven.join()
    driven.driver.feed(WeightsDelivered("e", 0))
    answer = await driven.driver.request_sync("e", SyncRequested("e"))
    assert (answer.newer, answer.step) == (False, 0)

    await driven.train()
    asking = asyncio.create_task(driven.driver.request_sync("e", SyncRequested("e")))
    await asyncio.sleep(0)
    driven.driver.feed(ExplorerLeft("e"))
    with pytest.raises(PeerUnavailable, match="ask again"):
        await asking

    driven.join()
    asking = asyncio.create_task(driven.driver.request_sync("e", SyncRequested("e")))
    await asyncio.sleep(0)
    assert driven.link.deliveries[-1].step == 1
    driven.driver.feed(WeightsDelivered("e", 1))
    answer = await asking
    assert (answer.newer, answer.step) == (True, 1)
    driven.driver.close()
    driven.worker.close()
