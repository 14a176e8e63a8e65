"""What users' code, models, disks and peers can give instead of what they should; each run ends as is said here, and is audited."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

import explorer_service.app
import explorer_service.weight_intake
from common.checkpoint.manifest_file import MANIFEST_NAME, CheckpointManifest, read_manifest, write_manifest
from common.config.security import Role
from common.errors import (
    CheckpointInvalid,
    ManifestMismatch,
    NonFiniteWeights,
    PeerFailed,
    RunMismatch,
    UnsafePath,
)
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller
from common.rpc.errors import from_rpc_error
from common.rpc.stubs import explorer_stub
from common.weights.manifest import build_manifest, tensor_views
from explorer_service.engine.slot_model import SlotModel
from protos.tandem.v1 import experience_pb2, explorer_pb2
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import in_process, kill
from tests.support.trained_log import TrainedLog
from trainer_service.engine.export import WeightExporter

QUICK = {"explorer": {"rollout_retries": 1, "rollout_timeout": 0.3, "max_failed_groups": 1000}}


@pytest.mark.parametrize(
    ("fault", "on_failed_rollout"),
    [
        ("raises", "partial"),
        ("raises", "refill"),
        ("hangs", "partial"),
        ("nan", "refill"),
        ("infinite", "partial"),
        ("text", "refill"),
        ("list", "partial"),
        ("nothing", "refill"),
    ],
)
async def test_a_reward_that_goes_wrong_costs_its_tasks_and_nothing_else(
    fault: str, on_failed_rollout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TrainedLog(monkeypatch)
    config = pair_config(
        tmp_path,
        QUICK,
        {
            "taskset": {"reward": "faulty", "reward_options": {"fault": fault}, "epochs": 1, "options": {"count": 16}},
            "trainer": {"total_steps": None},
            "explorer": {"on_failed_rollout": on_failed_rollout},
        },
    )
    with structlog.testing.capture_logs() as events:
        async with in_process(config) as pair:
            pair.start_explorer()
            pair.start_trainer()
            await pair.both_end()
    failed = {event["task"] for event in events if event["event"] == "task_failed"}
    trained = log.tasks(1)
    assert failed
    assert sum(trained.values()) + len(failed) == 16
    assert max(trained.values()) == 1


async def test_an_engine_whose_logits_are_sometimes_nan_costs_the_rollouts_that_it_spoils(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = SlotModel.decode, 0

    def sometimes_poisoned(self: SlotModel, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        logits = decode(self, *args)
        return logits * torch.nan if calls % 10 == 0 else logits

    monkeypatch.setattr(SlotModel, "decode", sometimes_poisoned)
    config = pair_config(tmp_path, QUICK, {"trainer": {"total_steps": 6}})
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.both_end()
    assert calls > 20


@pytest.mark.parametrize("method", ["shards", "checkpoint"])
async def test_weights_with_a_nan_are_applied_nowhere_and_end_the_run_on_both_sides(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = WeightExporter.export
    exported = 0

    def poisoned(self: WeightExporter) -> Any:
        nonlocal exported
        exported += 1
        snapshot = export(self)
        if exported < 4:
            return snapshot
        first = snapshot.manifest.tensors[0]
        damaged = snapshot.data.clone()
        damaged[first.offset : first.offset + 4].view(torch.float32)[0] = torch.nan
        monkeypatch.setattr(WeightExporter, "export", export)
        return _with(self, snapshot, damaged)

    monkeypatch.setattr(WeightExporter, "export", poisoned)
    config = pair_config(tmp_path, {"sync": {"method": method}, "trainer": {"total_steps": 8}})
    with structlog.testing.capture_logs() as events:
        async with in_process(config) as pair:
            pair.start_explorer()
            pair.start_trainer()
            trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, NonFiniteWeights)
    assert isinstance(explorer, PeerFailed)
    for error in (trainer, explorer):
        assert "NaN" in str(error) or "finite" in str(error)
    applied = [event["step"] for event in events if event["event"] == "weights_applied" and "manifest" in event]
    assert max(applied) < 4


async def test_an_explorer_that_rolls_out_in_another_dtype_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    config = pair_config(tmp_path)
    other = config.model_copy(update={"model": config.model.model_copy(update={"rollout_dtype": "bfloat16"})})
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer(other)
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, ManifestMismatch)
    fingerprints = {word.strip(",") for word in str(trainer).split() if len(word.strip(",")) == 32}
    assert len(fingerprints) == 2
    assert isinstance(explorer, PeerFailed)
    assert all(fingerprint in str(explorer) for fingerprint in fingerprints)


async def test_an_explorer_of_another_wire_revision_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = explorer_service.app.PROTOCOL_REVISION
    monkeypatch.setattr(explorer_service.app, "PROTOCOL_REVISION", ours + 1)
    config = pair_config(tmp_path)
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, RunMismatch)
    for error in (trainer, explorer):
        assert f"revision {ours + 1}" in str(error)
        assert f"we {ours}" in str(error)


async def test_paths_of_checkpoints_that_lead_elsewhere_are_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    config = pair_config(
        tmp_path,
        {"sync": {"method": "checkpoint"}, "taskset": {"reward": "slow_digits"}, "trainer": {"total_steps": 8}},
    )
    outside = tmp_path / "outside"
    outside.mkdir()
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 1)
        (config.checkpoint_root / "link").symlink_to(outside)
        caller = Caller(config.security, Role.TRAINER, Role.EXPLORER)
        async with open_channel(config.explorer.address, config.limits, caller) as channel:
            for path, kind in {
                "../outside": UnsafePath,
                str(outside): UnsafePath,
                "link": UnsafePath,
                "step_00000001-e1/../../../outside": UnsafePath,
                "": UnsafePath,
                "step_00009999-e1": CheckpointInvalid,
            }.items():
                version = experience_pb2.PolicyVersion(run_epoch=1, step=1000, manifest_hash="")
                request = explorer_pb2.NotifyCheckpointRequest(version=version, path=path)
                with pytest.raises(Exception) as caught:  # noqa: PT011 - it is looked at below
                    await explorer_stub(channel).NotifyCheckpoint(request, timeout=10)
                assert type(from_rpc_error(caught.value, "explorer")) is kind, path
        await pair.both_end()


async def test_a_checkpoint_that_is_deleted_while_it_is_read_ends_the_run_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = explorer_service.weight_intake.verify

    def verify_and_delete(folder: Path, **options: Any) -> CheckpointManifest:
        manifest = verify(folder, **options)
        if manifest.step == 3:
            shutil.rmtree(folder)
        return manifest

    monkeypatch.setattr(explorer_service.weight_intake, "verify", verify_and_delete)
    config = pair_config(tmp_path, {"sync": {"method": "checkpoint"}, "trainer": {"total_steps": 8}})
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        trainer, explorer = await pair.failure("trainer"), await pair.failure("explorer")
    assert isinstance(trainer, CheckpointInvalid)
    assert "step_00000003" in str(trainer)
    assert isinstance(explorer, PeerFailed)
    assert "step_00000003" in str(explorer)


async def test_a_resume_passes_over_a_checkpoint_of_another_release_and_says_which_and_why(tmp_path: Path) -> None:
    config = pair_config(
        tmp_path,
        {
            "trainer": {"total_steps": 8},
            "checkpoint": {"save_interval": 1},
            "taskset": {"reward": "slow_digits"},
        },
    )
    with structlog.testing.capture_logs() as events:
        async with in_process(config) as pair:
            pair.start_explorer()
            pair.start_trainer()
            await pair.until(pair.trainer_status, lambda status: status.saved_step >= 3)
            await kill(pair.tasks.pop("trainer"))
            newest = max(config.checkpoint_root.glob("step_*"))
            _rewrite_without(newest, "tasks")
            pair.start_trainer()
            await pair.both_end()
    (refused,) = [event for event in events if event["event"] == "checkpoint_refused"]
    assert refused["checkpoint"] == newest.name
    assert "'tasks'" in refused["reason"]


async def test_a_run_whose_checkpoints_were_removed_starts_afresh_beside_its_ledgers(tmp_path: Path) -> None:
    config = pair_config(
        tmp_path,
        {"trainer": {"total_steps": 6}, "checkpoint": {"save_interval": 1}, "taskset": {"reward": "slow_digits"}},
    )
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.saved_step >= 2)
        await kill(pair.tasks.pop("trainer"))
        shutil.rmtree(config.checkpoint_root)
        pair.start_trainer()
        status = await pair.until(pair.trainer_status, lambda status: status.step >= 1)
        assert status.run_epoch == 2
        await pair.both_end()


def _with(exporter: WeightExporter, snapshot: Any, data: torch.Tensor) -> Any:
    """The snapshot with these bytes, under a manifest that fits them."""
    del exporter
    manifest = build_manifest(tensor_views(snapshot.manifest, data))
    return type(snapshot)(manifest, data)


def _rewrite_without(checkpoint: Path, key: str) -> None:
    """The checkpoint as a release wrote it that did not know of this part of its state."""
    manifest = read_manifest(checkpoint)
    source = {name: value for name, value in manifest.state["source"].items() if name != key}
    (checkpoint / MANIFEST_NAME).unlink()
    write_manifest(checkpoint, manifest.step, manifest.run_epoch, {**manifest.state, "source": source})
