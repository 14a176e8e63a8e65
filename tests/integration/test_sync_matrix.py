"""All styles, both methods: the run finishes, and whatever the explorer runs on is bit by bit what was exported."""

import hashlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from common.sync.policy import Method, Style
from common.weights.manifest import tensor_views
from explorer_service.engine.torch_engine import TorchRolloutEngine
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import in_process
from trainer_service.engine.base import WeightsSnapshot
from trainer_service.engine.torch_engine import TorchTrainEngine

STEPS = 4
MATRIX = list(itertools.product(Style, Method))


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    state = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


class Exchanged:
    """What was exported at the trainer, and what was live in the explorer's model after each swap: SHA-256 of both."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.exported: list[str] = []
        self.live: dict[int, str] = {}
        export, apply = TorchTrainEngine.export_weights, TorchRolloutEngine.apply

        def exporting(engine: TorchTrainEngine) -> WeightsSnapshot:
            snapshot = export(engine)
            self.exported.append(_digest(tensor_views(snapshot.manifest, snapshot.data)))
            return snapshot

        async def applying(engine: TorchRolloutEngine, tensors: Any, run_epoch: int, step: int, **checked: str) -> str:
            manifest_hash = await apply(engine, tensors, run_epoch, step, **checked)
            model = engine._weights._model
            names = [entry.name for entry in engine.layout.tensors]
            state = model.state_dict()
            self.live[step] = _digest({name: state[name] for name in names})
            return manifest_hash

        patch.setattr(TorchTrainEngine, "export_weights", exporting)
        patch.setattr(TorchRolloutEngine, "apply", applying)


@pytest.mark.parametrize(("style", "method"), MATRIX, ids=[f"{style}-{method}" for style, method in MATRIX])
async def test_every_style_and_method_finishes_on_the_weights_that_were_exported(
    style: Style, method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged = Exchanged(monkeypatch)
    rollout_dtype = "bfloat16" if (style, method) == (Style.FULLY_ASYNC, Method.CHECKPOINT) else "float32"
    config = pair_config(
        tmp_path,
        {
            "sync": {"style": style.value, "method": method.value, "max_staleness": 2},
            "model": {"rollout_dtype": rollout_dtype},
            "checkpoint": {"save_interval": 2},
            "trainer": {"total_steps": STEPS},
        },
    )
    async with in_process(config) as pair:
        pair.start_trainer()
        pair.start_explorer()
        await pair.both_end()
    versions = list(exchanged.live)
    assert versions == sorted(versions)
    assert versions[0] == 0
    assert versions[-1] == STEPS
    assert set(exchanged.live.values()) <= set(exchanged.exported)
    assert len(set(exchanged.live.values())) == len(versions)
    if style is Style.FIXED:
        assert versions == [0, 1, 2, 3, 4]
