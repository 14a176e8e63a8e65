"""Any schedule that may be configured, with real services and sockets, and engines without a model.

Both sides refuse what cannot work, and finish what can; responses of all lengths are trained. With fixed and one explorer the
versions follow from the schedule alone, so every step is as stale as the simulator says. Else it hangs on who is faster when:
then it is within the bounds that `tandem check` promises. `TANDEM_EXAMPLES=300` tries so many configurations instead of a few.
"""

import os
import random
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from common.config.describe import explorers, plain_policy, staleness_bound, sync_policy
from common.config.root import TandemConfig
from common.errors import ConfigError
from common.service import Signals
from common.sync.happening import Happening, Kind
from common.sync.policy import Style
from common.sync.simulate import Durations, Simulation
from explorer_service.app import run_stage as run_explorer_stage
from tests.support.modelless import Modelless, modelless, response_tokens, run_to_the_end
from trainer_service.app import run_stage as run_trainer_stage

EXAMPLES = int(os.environ.get("TANDEM_EXAMPLES", "5"))
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""A pair is small as it is, and what hangs on timing does not come again."""
STEPS = 8
EPOCH = 40
"""Tasks, where the taskset ends the run."""


class Predicted(Simulation):
    """Keeps the staleness of the groups of each step."""

    def __init__(self, config: TandemConfig, tasks: int | None) -> None:
        self.by_step: list[list[int]] = []
        super().__init__(
            replace(plain_policy(config), repeats_windows=False),
            explorers(config),
            durations=Durations(rollout=1.0, train=0.5, push=0.1, latency=0.01),
            total_steps=config.trainer.total_steps,
            tasks=tasks,
        )

    def _post(self, happening: Happening) -> None:
        if happening.kind is Kind.TRAIN:
            step = self.pair.trainer.step
            self.by_step.append(sorted(step - group.oldest[1] for group in self.pair.batch))
        super()._post(happening)


@st.composite
def settled(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """Explorers, and settings that may or may not work out."""
    count = draw(st.integers(1, 3))
    each = draw(st.integers(1, 3))
    interval = draw(st.integers(1, 3))
    balanced = draw(st.sampled_from((True, True, True, False)))
    ends = draw(st.sampled_from((False, False, True)))
    batch = each * count if balanced else draw(st.integers(1, 6))
    return count, {
        "sync": {
            "style": draw(st.sampled_from(list(Style))).value,
            "method": draw(st.sampled_from(("shards", "checkpoint"))),
            "trainer_interval": interval,
            "explorer_interval": interval if balanced else draw(st.integers(1, 3)),
            "offset": draw(st.integers(0, 3)),
            "max_staleness": draw(st.none() | st.integers(0, 4)),
            "max_inflight_batches": draw(st.integers(1, 3)),
        },
        "buffer": {"max_groups": draw(st.integers(1, 6)) * batch},
        "trainer": {"batch_size": batch, "total_steps": None if ends else STEPS, "min_explorers": count},
        "explorer": {"batch_size": each},
        "taskset": {"options": {"count": EPOCH}, "epochs": 1} if ends else {},
    }


@given(settled(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
async def test_a_pair_finishes_as_stale_as_predicted_or_is_refused_on_both_sides(
    drawn: tuple[int, dict[str, Any]], seed: int
) -> None:
    count, overrides = drawn
    pick = random.Random(seed)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        ran = Modelless(
            patch,
            token_seconds=pick.choice((0.0, 0.0003, 0.003)),
            train_seconds=lambda: pick.choice((0.0, 0.002, 0.02)),
        )
        configs = modelless(Path(root), count, overrides)
        config = configs[0]
        try:
            policy = sync_policy(config)
        except ConfigError as refusal:
            await both_refuse(config, refusal)
            return
        tasks = EPOCH if config.taskset.epochs is not None else None
        predicted = Predicted(config, tasks)
        result = predicted.run()
        assert result.finished, result.deadlock
        await run_to_the_end(configs)
        if tasks is None:
            assert len(ran.steps) == STEPS
        if policy.style is Style.FIXED and count == 1:
            assert ran.staleness == predicted.by_step
        bound = staleness_bound(policy, count)
        if bound is not None:
            assert max(max(step, default=0) for step in (*ran.staleness, *predicted.by_step)) <= bound


async def both_refuse(config: TandemConfig, refusal: ConfigError) -> None:
    """Neither side starts, and both say what the check says."""
    for run_stage in (run_trainer_stage, run_explorer_stage):
        with pytest.raises(ConfigError) as refused:
            await run_stage(config, Signals())
        assert refused.value.message == refusal.message


SLOW = [
    pytest.param(style, bound, marks=pytest.mark.slow_faults)
    for style, bound in (("fully_async", 2), ("trainer_driven", 1), ("trainer_driven", 2))
]


@pytest.mark.parametrize(("style", "max_staleness"), [("fully_async", 1), *SLOW])
async def test_long_responses_are_trained_as_often_as_they_are_begun(
    style: str, max_staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert abs(await length_bias(tmp_path, monkeypatch, {"style": style, "max_staleness": max_staleness})) < 2


@pytest.mark.slow_faults
async def test_dropping_slow_groups_would_leave_long_responses_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = {"style": "fully_async", "max_staleness": 1, "wait_for_slow": False}
    assert await length_bias(tmp_path, monkeypatch, sync) < -5


async def length_bias(root: Path, patch: pytest.MonkeyPatch, sync: dict[str, Any]) -> float:
    """The mean length of the responses that were trained against that of those that were begun, in per cent.

    Those that each explorer began last are left out of both, whatever their length: the run ends before their turn comes. Of the
    others all can be trained, so there is no chance in what is compared; the taskset has each prompt once.
    """
    ran = Modelless(patch, token_seconds=0.001, train_seconds=0.002)
    settings = {
        "trainer": {"batch_size": 8, "total_steps": 60},
        "explorer": {"batch_size": 4},
        "taskset": {"options": {"count": 2000}},
        "sync": {**sync, "max_inflight_batches": 2},
    }
    await run_to_the_end(modelless(root, 2, settings))
    last = 16
    begun = [prompt for engine in ran.engines.values() for prompt, *_ in engine.calls[:-last]]
    trained = {
        tuple(int(token) for token in group.columns.tokens[: group.columns.prompt_lengths[0]])
        for groups in ran.steps
        for group in groups
    }
    assert len(begun) > 400
    generated = statistics.mean(response_tokens(prompt) for prompt in begun)
    return 100 * (statistics.mean(response_tokens(prompt) for prompt in begun if prompt in trained) / generated - 1)
