"""Pairs whose engines have no model: schedule, services and sockets are the real ones, and computing costs nothing.

`modelless` makes the configurations, and `Modelless` puts the engines in place for as long as a test runs.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import trainer_service.app
from common.config.root import TandemConfig
from common.experience.received import ReceivedGroup
from common.weights.manifest import Manifest, build_manifest, tensor_bytes
from explorer_service.engine.registry import ENGINES
from explorer_service.tasksets import TASKSETS, Task
from explorer_service.tasksets.base import TaskList
from tests.support.engines import END_TOKEN, ScriptedRolloutEngine
from tests.support.pair_config import free_address, pair_config
from tests.support.pair_in_process import InProcessPair, in_process
from trainer_service.buffer.queue import GroupQueue
from trainer_service.engine.base import StepResult, TrainBatch, WeightsSnapshot

LONGEST = 60
"""Tokens of a response."""
_TOKEN = 5
SETTINGS: dict[str, Any] = {
    "model": {"max_length": LONGEST + 8},
    "explorer": {
        "engine": "modelless",
        "group_size": 1,
        "sampling": {"max_tokens": LONGEST},
        "max_groups_per_batch": 1,
    },
    "taskset": {"name": "numbered", "options": {"count": 1000}, "epochs": None, "reward": "share_of_digits"},
    "plugins": ["tests.support.reward_plugin", "tests.support.modelless"],
    "checkpoint": {"save_interval": None},
}


def response_tokens(prompt: Sequence[int]) -> int:
    """Log-normal, so that some responses are many times as long as others; follows from the prompt."""
    length = random.Random(f"response {list(prompt)}").lognormvariate(2.2, 0.7)
    return min(LONGEST, max(1, round(length)))


@TASKSETS.register("numbered")
def numbered(count: int) -> TaskList:
    """Every prompt is another number."""
    return TaskList(Task(f"{index}", f"{index:06d}") for index in range(count))


class _Engine(ScriptedRolloutEngine):
    token_seconds = 0.0
    by_explorer: Mapping[str, "_Engine"] = {}

    def __init__(self) -> None:
        super().__init__(
            lambda prompt, _: [_TOKEN] * (response_tokens(prompt) - 1) + [END_TOKEN],
            tensors={"weight": torch.zeros(4)},
            token_seconds=self.token_seconds,
        )


class _Trainer:
    """A `TrainEngine` whose weights are the number of its steps."""

    seconds: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(self, config: TandemConfig, total_steps: int | None) -> None:
        del config, total_steps
        self._weight = torch.zeros(4)

    @property
    def layout(self) -> Manifest:
        return build_manifest({"weight": self._weight})

    def train_step(self, batch: TrainBatch) -> StepResult:
        del batch
        time.sleep(type(self).seconds())
        self._weight = self._weight + 1
        return StepResult(applied=True, metrics={})

    def export_weights(self) -> WeightsSnapshot:
        return WeightsSnapshot(self.layout, tensor_bytes(self._weight).clone())

    def capture(self) -> "_Capture":
        return _Capture(self._weight)

    def load(self, folder: Path) -> None:
        self._weight = load_file(folder / "model.safetensors")["weight"]


class _Capture:
    """An `EngineCapture`."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def write(self, folder: Path, *, hf_layout: bool) -> None:
        del hf_layout
        save_file({"weight": self._weight}, folder / "model.safetensors")


@ENGINES.register("modelless")
def _engine(config: TandemConfig) -> ScriptedRolloutEngine:
    engine = _Engine()
    Modelless.engines[config.explorer.id] = engine
    return engine


class Modelless:
    """What pairs without models do, and what they train."""

    engines: dict[str, ScriptedRolloutEngine] = {}  # noqa: RUF012 - replaced by each instance's patch
    """By explorer; those that were made last."""

    def __init__(
        self, patch: pytest.MonkeyPatch, *, token_seconds: float = 0.0, train_seconds: Callable[[], float] | float = 0.0
    ) -> None:
        """Until `patch` is undone, trainers have no model either."""
        self.steps: list[list[ReceivedGroup]] = []
        """The groups of each step, as they left the queue."""
        trained = GroupQueue.trained

        def noting(queue: GroupQueue, groups: list[ReceivedGroup], step: int, *, applied: bool) -> None:
            self.steps.append(groups)
            trained(queue, groups, step, applied=applied)

        seconds = train_seconds if callable(train_seconds) else lambda: train_seconds
        patch.setattr(GroupQueue, "trained", noting)
        patch.setattr(trainer_service.app, "TorchTrainEngine", _Trainer)
        patch.setattr(_Trainer, "seconds", staticmethod(seconds))
        patch.setattr(_Engine, "token_seconds", token_seconds)
        patch.setattr(Modelless, "engines", {})

    @property
    def staleness(self) -> list[list[int]]:
        """Of the groups of each step, sorted."""
        return [sorted(step - group.oldest_version for group in groups) for step, groups in enumerate(self.steps)]


def modelless(root: Path, explorers: int, *overrides: Mapping[str, Any]) -> list[TandemConfig]:
    """The configuration of each explorer; the trainer's is the first one."""
    addresses = [free_address() for _ in range(explorers)]
    first = pair_config(root, SETTINGS, {"explorers": [{"address": address} for address in addresses]}, *overrides)
    return [
        first.model_copy(
            update={"explorer": first.explorer.model_copy(update={"id": f"explorer-{index}", "address": address})}
        )
        for index, address in enumerate(addresses)
    ]


async def run_to_the_end(configs: Sequence[TandemConfig]) -> InProcessPair:
    """Starts all sides at once; returns when all have ended without an error."""
    async with in_process(configs[0]) as pair:
        pair.start_trainer()
        for config in configs:
            pair.start_explorer(config, config.explorer.id)
        await pair.both_end()
    return pair
