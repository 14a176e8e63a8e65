"""SIGKILL of either service at named and at random points: the run ends with the weights of one that nobody disturbed.

The runs are deterministic, so whatever a kill lost, doubled or tore shows in the last bit of the weights.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.checkpoint.store import CheckpointStore
from tests.support.kill_plugin import VARIABLE, KillPoint
from tests.support.pair import Pair, Service, Side, processes
from tests.support.pair_config import pair_settings

pytestmark = pytest.mark.timeout(1800)  # every start costs ten seconds of imports where the machine is busy

METHODS = ["shards", "checkpoint"]
TRAINER: dict[str, KillPoint] = {
    "before an ack": KillPoint("trainer_service.explorer_link", "ExplorerLink.acknowledge"),
    "in a train step": KillPoint("trainer_service.engine.torch_engine", "TorchTrainEngine.train_step", 2),
    "between the optimizer's step and the ledger": KillPoint("trainer_service.ledger", "LedgerFile.step", 2),
    "between the ledger and the save": KillPoint("trainer_service.trainer", "Trainer._begin_save"),
    "before a checkpoint's files": KillPoint("trainer_service.engine.capture", "TorchCapture.write"),
    "before a checkpoint's manifest": KillPoint("common.checkpoint.store", "write_manifest"),
    "after a checkpoint's manifest": KillPoint("common.checkpoint.store", "write_manifest", after=True),
    "while a checkpoint is synced": KillPoint("common.checkpoint.atomic", "fsync_path", 6),
    "before the pointer to the latest": KillPoint("common.checkpoint.store", "replace_file", 2),
    "between the checkpoint and the ledger's word of it": KillPoint("trainer_service.ledger", "LedgerFile.saved"),
    "between the ledger's word and the acks": KillPoint("trainer_service.ledger", "LedgerFile.saved", after=True),
    "while old checkpoints are deleted": KillPoint("common.checkpoint.store", "CheckpointStore.prune"),
    "while it claims its run epoch": KillPoint("common.checkpoint.store", "CheckpointStore.claim_run_epoch"),
    "after it has claimed its run epoch": KillPoint(
        "common.checkpoint.store", "CheckpointStore.claim_run_epoch", after=True
    ),
    "when an explorer says hello": KillPoint("trainer_service.explorer_link", "ExplorerLink._greet"),
    "when a batch arrives": KillPoint("trainer_service.buffer.queue", "GroupQueue.take_in", 2, after=True),
    "when it grants credit": KillPoint("trainer_service.explorer_link", "ExplorerLink.grant", 2),
}
TRAINER_OF = {
    "shards": {
        "in a push, before a chunk": KillPoint("trainer_service.publish.push_stream", "serialize_push_chunk", 3),
        "while weights are exported": KillPoint("trainer_service.engine.export", "WeightExporter.export", 3),
    },
    "checkpoint": {
        "before a version is told of": KillPoint(
            "trainer_service.publish.checkpoint", "CheckpointPublisher.deliver", 2
        ),
        "while a version is written": KillPoint(
            "trainer_service.publish.checkpoint", "CheckpointPublisher._write", 2, after=True
        ),
    },
}
EXPLORER: dict[str, KillPoint] = {
    "while it registers": KillPoint("explorer_service.trainer_client", "TrainerClient._register"),
    "while its spool is opened": KillPoint("explorer_service.spool", "_start_incarnation", after=True),
    "when a stream is opened": KillPoint("explorer_service.experience_stream", "ExperienceStream._open", after=True),
    "between verification and swap": KillPoint("explorer_service.weight_intake", "WeightIntake.swap_in", 2),
    "in a swap": KillPoint("explorer_service.engine.live_weights", "LiveWeights.swap", 2, after=True),
    "between a swap and its word": KillPoint("explorer_service.kept_weights", "KeptWeights.save", 2),
    "between the kept weights and the spool": KillPoint(
        "explorer_service.kept_weights", "KeptWeights.save", after=True
    ),
    "while a group is made": KillPoint("explorer_service.engine.decode_thread", "DecodeThread._decode", 9),
    "while it spools": KillPoint("explorer_service.spool", "Spool.append", 2),
    "after it has spooled": KillPoint("explorer_service.spool", "Spool.append", 3, after=True),
    "when an ack comes": KillPoint("explorer_service.spool", "Spool.acknowledge"),
    "after an ack": KillPoint("explorer_service.spool", "Spool.acknowledge", after=True),
    "when a push is offered": KillPoint("explorer_service.weight_intake", "WeightIntake.admit", 2),
    "when credit comes": KillPoint("explorer_service.task_share", "TaskShare.give", 2),
}
EXPLORER_OF = {
    "shards": {
        "in a push, after a chunk": KillPoint("common.weights.assembly", "WeightAssembly.write", 3, after=True),
    },
    "checkpoint": {
        "while a version is read": KillPoint("explorer_service.weight_intake", "WeightIntake._read", 2),
    },
}


def _settings(root: Path, method: str, steps: int) -> dict[str, Any]:
    root.mkdir()
    return pair_settings(
        root / "runs",
        {
            "run": {"deterministic": True},
            "trainer": {"total_steps": steps, "peer_timeout": 250},
            "explorer": {"peer_timeout": 250, "group_size": 4},
            "checkpoint": {"save_interval": 2, "keep": 2},
            # Chunks so small that a push has several.
            "sync": {"method": method, "offset": 1, "chunk_bytes": 4096},
            "plugins": ["tests.support.reward_plugin", "tests.support.kill_plugin"],
            "taskset": {"reward": "slow_digits"},
        },
    )


async def _undisturbed(root: Path, method: str, steps: int) -> dict[str, torch.Tensor]:
    settings = _settings(root, method, steps)
    async with processes(root, settings) as pair:
        trainer, explorer = pair.start("trainer"), pair.start("explorer")
        assert (await trainer.ended(), await explorer.ended()) == (0, 0)
    return _final(settings, steps)


async def _killed_at(
    root: Path, method: str, steps: int, points: dict[Side, Sequence[KillPoint]]
) -> tuple[dict[str, torch.Tensor], dict[Side, int]]:
    """The final weights, and how often each side was killed; one that was is started again, to die at its next point."""
    settings = _settings(root, method, steps)
    kills: dict[Side, int] = {"trainer": 0, "explorer": 0}
    async with processes(root, settings) as pair:
        running = {side: _start(pair, side, points[side], 0) for side in kills}
        while running:
            side = await pair.first_end(running)
            code = running[side].process.returncode
            if code != -9:
                assert code == 0, running[side].log.read_text()[-3000:]
                del running[side]
                continue
            kills[side] += 1
            running[side] = _start(pair, side, points[side], kills[side])
    return _final(settings, steps), kills


def _start(pair: Pair, side: Side, points: Sequence[KillPoint], kills: int) -> Service:
    return pair.start(side, environment={VARIABLE: str(points[kills])} if kills < len(points) else {})


def _final(settings: dict[str, Any], steps: int) -> dict[str, torch.Tensor]:
    root = Path(settings["run"]["root"]) / settings["run"]["name"] / "main" / "checkpoints"
    newest = CheckpointStore(root, 1).newest()
    assert newest is not None
    assert newest.manifest.step == steps
    return load_file(newest.path / "model.safetensors")


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow_faults
async def test_killed_in_a_push_between_optimizer_and_save_between_swap_and_word_and_while_spooling(
    tmp_path: Path,
) -> None:
    points: dict[Side, Sequence[KillPoint]] = {
        "trainer": [TRAINER["between the ledger and the save"], TRAINER_OF["shards"]["in a push, before a chunk"]],
        "explorer": [EXPLORER["after it has spooled"], EXPLORER["between a swap and its word"]],
    }
    killed, kills = await _killed_at(tmp_path / "killed", "shards", 12, points)
    assert kills == {"trainer": 2, "explorer": 2}
    assert _same(killed, await _undisturbed(tmp_path / "undisturbed", "shards", 12))


@pytest.mark.slow_faults
@pytest.mark.parametrize("method", METHODS)
async def test_killed_at_each_named_point(method: str, tmp_path: Path) -> None:
    points: dict[Side, Sequence[KillPoint]] = {
        "trainer": [*TRAINER.values(), *TRAINER_OF[method].values()],
        "explorer": [*EXPLORER.values(), *EXPLORER_OF[method].values()],
    }
    killed, kills = await _killed_at(tmp_path / "killed", method, 80, points)
    assert kills == {side: len(points[side]) for side in points}
    assert _same(killed, await _undisturbed(tmp_path / "undisturbed", method, 80))


@pytest.mark.slow_faults
@pytest.mark.parametrize("side", ["trainer", "explorer"])
@pytest.mark.parametrize("method", METHODS)
async def test_killed_at_twenty_random_points(method: str, side: Side, tmp_path: Path) -> None:
    pick = random.Random(f"{method} {side}")
    named = TRAINER | TRAINER_OF[method] if side == "trainer" else EXPLORER | EXPLORER_OF[method]
    drawn = [pick.choice(list(named.values())) for _ in range(20)]
    once = {"claim_run_epoch", "_greet", "_start_incarnation", "_register", "_open"}
    random_points = [
        KillPoint(
            point.module,
            point.function,
            1 if point.function.rpartition(".")[2] in once else pick.randint(1, 8),
            pick.random() < 0.5,
        )
        for point in drawn
    ]
    points: dict[Side, Sequence[KillPoint]] = {"trainer": [], "explorer": [], side: random_points}
    killed, kills = await _killed_at(tmp_path / "killed", method, 120, points)
    assert kills[side] == len(random_points)
    assert _same(killed, await _undisturbed(tmp_path / "undisturbed", method, 120))
