"""One side fails, or the two do not fit: both end, and both know why."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from common.checkpoint.store import CheckpointStore
from common.errors import (
    ManifestMismatch,
    PeerFailed,
    PeerUnavailable,
    RunMismatch,
    StorageFailed,
    TrainingDiverged,
    WaitTimedOut,
    WorkflowFailed,
)
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import in_process
from trainer_service.engine.base import StepResult, TrainBatch
from trainer_service.engine.capture import TorchCapture
from trainer_service.engine.torch_engine import TorchTrainEngine
from trainer_service.sync_driver import SyncDriver


async def test_an_explorer_that_fails_gives_the_trainer_its_cause(tmp_path: Path) -> None:
    config = pair_config(
        tmp_path,
        {
            "taskset": {"reward": "unhappy"},
            "explorer": {"max_failed_groups": 2, "rollout_retries": 0},
            "trainer": {"peer_timeout": 1},
        },
    )
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        explorer, trainer = await pair.failure("explorer"), await pair.failure("trainer")
    assert isinstance(explorer, WorkflowFailed)
    assert "3 groups failed in a row" in str(explorer)
    assert isinstance(trainer, PeerUnavailable)
    assert "no explorer for 1 seconds" in str(trainer)
    assert "3 groups failed in a row" in str(trainer)
    assert "no reward for" in str(trainer)


async def test_a_trainer_that_fails_saves_its_last_good_state_and_tells_the_explorer_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = TorchTrainEngine.train_step
    done = []

    def diverging(engine: TorchTrainEngine, batch: TrainBatch) -> StepResult:
        if len(done) == 2:
            raise TrainingDiverged("the loss was not finite 5 times in a row")
        done.append(batch)
        return steps(engine, batch)

    monkeypatch.setattr(TorchTrainEngine, "train_step", diverging)
    config = pair_config(tmp_path)
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, TrainingDiverged)
    assert isinstance(explorer, PeerFailed)
    assert "the loss was not finite 5 times in a row" in str(explorer)
    newest = CheckpointStore(config.checkpoint_root, 3).newest()
    assert newest is not None
    assert newest.manifest.step == 2


async def test_a_full_disk_fails_the_run_and_leaves_the_checkpoint_before_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = TorchCapture.write
    written = []

    def filling(capture: TorchCapture, folder: Path, *, hf_layout: bool) -> None:
        if written:
            (folder / "model.safetensors").write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(capture, folder, hf_layout=hf_layout)
        written.append(folder)

    monkeypatch.setattr(TorchCapture, "write", filling)
    config = pair_config(tmp_path, {"checkpoint": {"save_interval": 2}, "trainer": {"total_steps": 20}})
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, StorageFailed)
    assert "No space left on device" in str(trainer)
    assert isinstance(explorer, PeerFailed)
    assert "No space left on device" in str(explorer)
    newest = CheckpointStore(config.checkpoint_root, 3).newest()
    assert newest is not None
    assert (newest.manifest.step, newest.refused) == (2, ())
    assert not [path.name for path in config.checkpoint_root.iterdir() if "00000004" in path.name]


@pytest.mark.parametrize(
    ("other", "kind", "named"),
    [
        ({"tokenizer": "characters:srcd=0123456789"}, RunMismatch, "another tokenizer"),
        ({"architecture": {"intermediate_size": 40}}, ManifestMismatch, "another model"),
    ],
    ids=["tokenizer", "layout"],
)
async def test_an_explorer_of_another_model_ends_the_run_with_both_fingerprints(
    other: dict[str, Any], kind: type[Exception], named: str, tmp_path: Path
) -> None:
    config = pair_config(tmp_path)
    raw = config.model_dump()
    raw["model"] = {**raw["model"], **other}
    if "architecture" in other:
        raw["model"]["architecture"] = {**(config.model.architecture or {}), **other["architecture"]}
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer(type(config).model_validate(raw))
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, kind)
    assert named in str(trainer)
    fingerprints = [word.strip(",") for word in str(trainer).split() if len(word.strip(",")) == 32]
    assert len(set(fingerprints)) == 2
    assert isinstance(explorer, PeerFailed)
    assert all(fingerprint in str(explorer) for fingerprint in fingerprints)


async def test_a_trainer_that_never_answers_a_request_ends_the_run_on_both_sides_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SyncDriver, "request_sync", never)
    sync = {"style": "explorer_driven", "timeout": 1}
    async with in_process(pair_config(tmp_path, {"sync": sync, "trainer": {"peer_timeout": 1}})) as pair:
        pair.start_trainer()
        pair.start_explorer()
        explorer, trainer = await pair.failure("explorer"), await pair.failure("trainer")
    assert isinstance(explorer, WaitTimedOut)
    assert "no answer to RequestSync for 1 seconds" in str(explorer)
    assert isinstance(trainer, PeerUnavailable)
    assert "no explorer for 1 seconds" in str(trainer)
    assert "no answer to RequestSync for 1 seconds" in str(trainer)


async def test_rollouts_that_never_end_end_the_run_on_both_sides_with_the_cause(tmp_path: Path) -> None:
    config = pair_config(tmp_path, {"taskset": {"reward": "stuck"}, "trainer": {"experience_timeout": 1}})
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, WaitTimedOut)
    assert "waited 1 seconds for 2 groups for step 1, 0 are here" in str(trainer)
    assert isinstance(explorer, PeerFailed)
    assert "waited 1 seconds for 2 groups for step 1" in str(explorer)
