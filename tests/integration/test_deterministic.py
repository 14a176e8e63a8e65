"""`run.deterministic`: the same weights to the bit, of two runs, and of one that was killed and went on."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.checkpoint.store import CheckpointStore
from common.config.describe import sync_policy
from common.config.root import TandemConfig
from common.errors import ConfigError, PeerFailed, RunMismatch
from tests.support.pair_config import free_address, pair_config
from tests.support.pair_in_process import InProcessPair, in_process, kill

STEPS = 8
LAST_KILL = 4
"""Further on the trainer may end with what it has, and an explorer that comes back would find nobody."""


def _config(root: Path, *overrides: dict[str, Any]) -> TandemConfig:
    settings = {
        "run": {"deterministic": True},
        "trainer": {"total_steps": STEPS},
        "checkpoint": {"save_interval": 3},
        "taskset": {"reward": "slow_digits"},
        "explorer": {"batch_size": 2, "group_size": 4},
    }
    return pair_config(root, settings, *overrides)


def _final(config: TandemConfig) -> dict[str, torch.Tensor]:
    newest = CheckpointStore(config.checkpoint_root, 1).newest()
    assert newest is not None
    assert newest.manifest.step == STEPS
    return load_file(newest.path / "model.safetensors")


async def _run(config: TandemConfig) -> dict[str, torch.Tensor]:
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.both_end()
    return _final(config)


async def _run_with_kills(config: TandemConfig, seed: int, kills: int) -> dict[str, torch.Tensor]:
    """Kills one side or both, at any moment but the end, as often as said."""
    pick = random.Random(seed)
    async with in_process(config) as pair:
        for _ in range(kills):
            _start_missing(pair)
            left = pick.randint(1, 40)

            def is_time(status: Any) -> bool:
                nonlocal left
                left -= 1
                return left <= 0 or status.step > LAST_KILL

            status = await pair.until(pair.trainer_status, is_time)
            if status.step > LAST_KILL:
                break
            for side in pick.choice((["explorer"], ["trainer"], ["trainer", "explorer"])):
                await kill(pair.tasks.pop(side))
        _start_missing(pair)
        await pair.both_end()
    return _final(config)


def _start_missing(pair: InProcessPair) -> None:
    if "explorer" not in pair.tasks:
        pair.start_explorer()
    if "trainer" not in pair.tasks:
        pair.start_trainer()


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("method", "offset"),
    [
        ("shards", 1),
        ("checkpoint", 0),
        pytest.param("shards", 0, marks=pytest.mark.slow_faults),
        pytest.param("checkpoint", 2, marks=pytest.mark.slow_faults),
    ],
)
async def test_a_run_that_was_killed_and_went_on_ends_with_the_same_weights_to_the_bit(
    method: str, offset: int, tmp_path: Path
) -> None:
    sync = {"sync": {"method": method, "offset": offset}}
    undisturbed = await _run(_config(tmp_path / "one", sync))
    assert _same(undisturbed, await _run_with_kills(_config(tmp_path / "killed", sync), 10 * offset + len(method), 4))


async def test_two_runs_end_with_the_same_weights_to_the_bit_and_the_seed_decides_on_them(tmp_path: Path) -> None:
    # Windows of four explore steps and two train steps, and evaluations in between.
    settings: dict[str, Any] = {
        "sync": {"trainer_interval": 2, "explorer_interval": 4},
        "checkpoint": {"save_interval": 4},
        "explorer": {
            "batch_size": 1,
            "evaluation": {"interval": 1, "taskset": {"name": "digit_skills"}, "max_tasks": 3},
        },
    }
    one = await _run(_config(tmp_path / "one", settings))
    assert _same(one, await _run(_config(tmp_path / "two", settings)))
    assert not _same(one, await _run(_config(tmp_path / "other", settings, {"run": {"seed": 1}})))


async def test_what_a_killed_trainer_cannot_make_again_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    config = _config(tmp_path, {"checkpoint": {"save_interval": None}})
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 2)
        await kill(pair.tasks.pop("trainer"))
        pair.start_trainer()
        error = await pair.failure("trainer")
    assert isinstance(error, RunMismatch)
    assert "checkpoint.save_interval" in str(error)


async def test_a_second_explorer_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    config = _config(tmp_path)
    address = free_address()
    second = config.model_copy(
        update={"explorer": config.explorer.model_copy(update={"id": "another", "address": address})}
    )
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 1)
        pair.start_explorer(second, "another")
        refused = await pair.failure("another")
        assert isinstance(refused, PeerFailed)
        assert "explorer another came to a deterministic run" in str(refused)
        del pair.tasks["another"]
        await pair.both_end()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sync": {"style": "fully_async"}}, "fully_async"),
        ({"trainer": {"min_explorers": 2}}, "one explorer"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        sync_policy(_config(tmp_path, settings))
