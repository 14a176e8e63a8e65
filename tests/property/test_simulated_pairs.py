"""What the simulator says of a schedule is what real services do: they finish, as stale as predicted, and nothing long is left out."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.describe import plain_policy, sync_policy
from common.config.root import TandemConfig
from common.errors import ConfigError
from common.sync.policy import Style
from common.sync.simulate import Durations, simulate
from explorer_service.group_runner import GroupRunner
from tests.support.pair_config import free_address, pair_config
from tests.support.pair_in_process import in_process
from trainer_service.buffer.queue import GroupQueue

STEPS = 6


class Trained:
    """Every group that was trained: its staleness, and the lengths of its responses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.staleness: Counter[int] = Counter()
        self.lengths: list[int] = []
        trained = GroupQueue.trained

        def counted(queue: GroupQueue, groups: list[Any], step: int, *, applied: bool) -> None:
            self.staleness.update(step - 1 - group.oldest_version for group in groups)
            for group in groups:
                responses = np.diff(group.columns.token_offsets) - group.columns.prompt_lengths
                self.lengths += responses.tolist()
            trained(queue, groups, step, applied=applied)

        monkeypatch.setattr(GroupQueue, "trained", counted)


def _configs(root: Path, explorers: int, *overrides: dict[str, Any]) -> list[TandemConfig]:
    """The configuration of each explorer; the trainer's is the first."""
    addresses = [free_address() for _ in range(explorers)]
    first = pair_config(root, {"explorers": [{"address": address} for address in addresses]}, *overrides)
    return [
        first.model_copy(
            update={"explorer": first.explorer.model_copy(update={"id": f"explorer-{at}", "address": address})}
        )
        for at, address in enumerate(addresses)
    ]


async def _run(configs: list[TandemConfig]) -> None:
    async with in_process(configs[0]) as pair:
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        pair.start_trainer()
        await pair.both_end()


def _random_settings(pick: random.Random) -> tuple[int, dict[str, Any]]:
    """Explorers, and settings of which some cannot work."""
    explorers = pick.randint(1, 2)
    each = pick.randint(1, 2)
    interval = pick.randint(1, 2)
    return explorers, {
        "trainer": {"batch_size": each * explorers, "total_steps": STEPS},
        "explorer": {"batch_size": pick.choice((each, each, each, 1, 3))},
        "sync": {
            "style": pick.choice(list(Style)),
            "trainer_interval": interval,
            "explorer_interval": pick.choice((interval, interval, interval, 1)),
            "offset": pick.randint(0, 2),
            "max_staleness": pick.choice((None, None, 1, 2, 3)),
            "max_inflight_batches": pick.randint(1, 2),
        },
        "buffer": {"max_groups": pick.choice((1024, 1024, 8, 2))},
    }


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow_faults) for seed in range(4, 100))]
)
async def test_what_is_called_live_finishes_and_is_as_stale_as_predicted(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorers, settings = _random_settings(random.Random(seed))
    configs = _configs(tmp_path, explorers, settings)
    policy = replace(plain_policy(configs[0]), repeats_windows=False)
    predicted = simulate(
        policy, explorers=explorers, durations=Durations(1.0, 0.5, 0.1, latency=0.01), total_steps=STEPS
    )
    if predicted.deadlock is not None:
        with pytest.raises(ConfigError, match="wait for each other"):
            sync_policy(configs[0])
        return
    sync_policy(configs[0])
    trained = Trained(monkeypatch)
    await _run(configs)
    assert sum(trained.staleness.values()) == STEPS * policy.groups_per_train_step
    if policy.max_staleness is not None:
        assert max(trained.staleness) <= policy.max_staleness
    balanced = (
        policy.explorer_interval * policy.groups_per_explore_step * explorers
        == policy.trainer_interval * policy.groups_per_train_step
    )
    if policy.style is Style.FIXED and balanced and policy.max_staleness is None:
        # The version of every explore step is settled by the schedule, whatever takes how long.
        assert trained.staleness == predicted.staleness


STEPS_OF_MANY = 50
BIASED = {"sync": {"wait_for_slow": False}}


@pytest.mark.parametrize(
    ("style", "max_staleness", "more"),
    [
        pytest.param("fully_async", 1, {}, marks=pytest.mark.slow_faults),
        ("trainer_driven", 2, {}),
        pytest.param("fully_async", 2, {}, marks=pytest.mark.slow_faults),
        pytest.param("explorer_driven", 1, {}, marks=pytest.mark.slow_faults),
        pytest.param("fully_async", 1, BIASED, marks=pytest.mark.slow_faults),
    ],
)
async def test_long_responses_are_trained_as_often_as_they_are_generated(
    style: str, max_staleness: int, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated: list[int] = []
    run = GroupRunner.run

    async def counted(self: GroupRunner, *args: Any, **kwargs: Any) -> Any:
        group = await run(self, *args, **kwargs)
        generated.extend(len(one.tokens) - one.prompt_length for one in group.experiences)
        return group

    monkeypatch.setattr(GroupRunner, "run", counted)
    trained = Trained(monkeypatch)
    configs = _configs(
        tmp_path,
        2,
        {
            # A policy that stands still: what differs is chosen, not learned.
            "algorithm": {"optimizer": {"lr": 1e-12}},
            "trainer": {"batch_size": 8, "total_steps": STEPS_OF_MANY},
            "explorer": {"batch_size": 8, "sampling": {"max_tokens": 20}},
            "sync": {"style": style, "max_staleness": max_staleness},
            "taskset": {"reward": "slow_by_length"},
        },
        more,
    )
    await _run(configs)
    bias = 100 * (np.mean(trained.lengths) / np.mean(generated) - 1)
    assert len(trained.lengths) == STEPS_OF_MANY * 8 * 2
    if more is BIASED:
        assert bias < -2  # that it would be seen
    else:
        assert abs(bias) < 2
