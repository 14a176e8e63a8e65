"""Versions on shared storage."""

import asyncio
from pathlib import Path

import torch

from common.config.root import TandemConfig
from tests.support.push_pair import snapshot_of
from trainer_service.publish.checkpoint import PUBLISHED_FOLDER, CheckpointPublisher

VERSIONS = 24


async def test_versions_that_come_faster_than_the_disk_are_written_one_after_the_other(tmp_path: Path) -> None:
    config = TandemConfig.model_validate(
        {"model": {"path": "unused"}, "checkpoint": {"root": str(tmp_path), "keep": 1}, "run": {"root": str(tmp_path)}}
    )
    publisher = CheckpointPublisher(config, 1, lambda _step: None)
    snapshots = [snapshot_of({"weight": torch.full((4,), float(step))}) for step in range(VERSIONS)]
    published = await asyncio.gather(*(publisher.prepare(step, one) for step, one in enumerate(snapshots)))
    assert [one.version.step for one in published] == list(range(VERSIONS))
    kept = {path.name for path in (tmp_path / PUBLISHED_FOLDER).glob("step_*")}
    assert kept == {Path(published[-1].path or "").name}
