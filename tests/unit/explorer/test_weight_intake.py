"""Versions on their way in: admitted in order, applied as promised, superseded by newer ones."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from common.changes import Changes
from common.checkpoint.store import CheckpointStore
from common.checkpoint.weights_file import write_weights
from common.config.root import TandemConfig
from common.errors import ManifestMismatch, NonFiniteWeights, ShuttingDown, StaleEpoch, StaleVersion, UnsafePath
from common.sync.events import WeightsStaged
from common.weights.manifest import build_manifest, tensor_bytes
from common.weights.version import PolicyVersion
from explorer_service.spool_thread import SpoolThread
from explorer_service.weight_intake import WeightIntake
from tests.support.engines import ScriptedRolloutEngine


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((4,), value)}


def version(epoch: int, step: int, value: float) -> PolicyVersion:
    return PolicyVersion(epoch, step, build_manifest(weights(value)).manifest_hash)


class Intake:
    def __init__(self, root: Path, spool: SpoolThread) -> None:
        model = {"architecture": {"model_type": "llama"}, "tokenizer": "characters:ab"}
        config = TandemConfig.model_validate({"model": model, "checkpoint": {"root": str(root)}})
        self.root = root
        self.engine = ScriptedRolloutEngine()
        self.staged: list[WeightsStaged] = []
        engine: Any = self.engine
        self.weights = WeightIntake(config, engine, spool, Changes(), self.staged.append)

    def on_disk(self, step: int, value: float) -> str:
        manifest = build_manifest(weights(value))

        def fill(folder: Path) -> None:
            write_weights(folder / "model.safetensors", manifest, tensor_bytes(weights(value)["weight"]))

        return CheckpointStore(self.root, 3).write(step, 1, fill, {}).relative

    async def stage(self, epoch: int, step: int, value: float) -> PolicyVersion:
        assert await self.weights.admit(version(epoch, step, value))
        return await self.weights.stage_from_disk(version(epoch, step, value), self.on_disk(step, value))


@pytest_asyncio.fixture
async def intake(tmp_path: Path) -> AsyncIterator[Intake]:
    spool = SpoolThread()
    await spool.open(tmp_path / "e.spool", "run", "e")
    yield Intake(tmp_path / "checkpoints", spool)
    await spool.close()


async def test_a_version_is_live_when_it_is_applied_and_not_before(intake: Intake) -> None:
    found = await intake.stage(1, 3, 0.5)
    assert found == version(1, 3, 0.5)
    assert intake.staged == [WeightsStaged(1, 3)]
    assert (intake.weights.live, intake.weights.outcome_of((1, 3))) == (PolicyVersion(0, 0), None)
    assert await intake.weights.swap_in(1, 3) == version(1, 3, 0.5) == intake.weights.live
    assert intake.engine.version == (1, 3)
    outcome = intake.weights.outcome_of((1, 3))
    assert outcome is not None
    assert outcome.applied


async def test_the_same_version_again_needs_nothing_and_other_weights_of_it_are_refused(intake: Intake) -> None:
    await intake.stage(1, 3, 0.5)
    assert not await intake.weights.admit(version(1, 3, 0.5))
    await intake.weights.swap_in(1, 3)
    assert not await intake.weights.admit(version(1, 3, 0.5))
    with pytest.raises(ManifestMismatch, match="two sets of weights claim to be version 3"):
        await intake.weights.admit(version(1, 3, 0.75))


async def test_what_is_behind_is_refused(intake: Intake) -> None:
    await intake.stage(2, 3, 0.5)
    await intake.weights.swap_in(2, 3)
    with pytest.raises(StaleVersion, match="version 2 of epoch 2"):
        await intake.weights.admit(version(2, 2, 0.25))
    with pytest.raises(StaleEpoch):
        await intake.weights.admit(version(1, 9, 0.25))


async def test_a_newer_version_takes_the_place_of_one_that_waits_even_after_its_swap_was_ordered(
    intake: Intake,
) -> None:
    await intake.stage(1, 3, 0.5)
    await intake.stage(1, 4, 0.75)
    superseded = intake.weights.outcome_of((1, 3))
    assert superseded is not None
    assert (superseded.applied, superseded.version) == (False, version(1, 4, 0.75))
    assert await intake.weights.swap_in(1, 3) == version(1, 4, 0.75)  # the order is older than what came since
    assert intake.weights.live == version(1, 4, 0.75)


async def test_only_what_is_staged_can_be_swapped_in(intake: Intake) -> None:
    with pytest.raises(RuntimeError, match="not staged"):
        await intake.weights.swap_in(1, 1)


async def test_weights_that_are_not_the_announced_ones_are_not_staged(intake: Intake) -> None:
    relative = intake.on_disk(3, 0.5)
    with pytest.raises(ManifestMismatch, match="was announced as"):
        await intake.weights.stage_from_disk(version(1, 3, 0.75), relative)
    with pytest.raises(NonFiniteWeights):
        await intake.weights.stage_from_disk(PolicyVersion(1, 4), intake.on_disk(4, float("nan")))
    with pytest.raises(UnsafePath):
        await intake.weights.stage_from_disk(version(1, 3, 0.5), "../elsewhere")
    assert intake.staged == []


async def test_who_waits_for_an_outcome_is_told_when_the_explorer_ends(intake: Intake) -> None:
    await intake.stage(1, 3, 0.5)
    waiting = asyncio.create_task(intake.weights.changes.until(lambda: intake.weights.outcome_of((1, 3)) is not None))
    await asyncio.sleep(0)
    intake.weights.close()
    with pytest.raises(ShuttingDown):
        await waiting
