"""Two stages in one configuration: a supervised one from a file, then one with an explorer, on its result."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.config.stages import explorer_stage_configs, result_folder, stage_configs
from common.config.validate import validate
from common.service import _run_stages
from explorer_service.app import run_stage as run_explorer
from explorer_service.engine.torch_engine import TorchRolloutEngine
from tests.support.pair_config import pair_settings
from tests.support.pair_in_process import SECONDS, in_process
from trainer_service.app import run_stage as run_trainer


def digest(tensors: dict[str, torch.Tensor]) -> str:
    state = hashlib.sha256()
    for name in sorted(tensors):
        state.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return state.hexdigest()


async def test_the_second_stage_starts_from_the_result_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = tmp_path / "examples.jsonl"
    examples.write_text("".join(json.dumps({"prompt": f"s{number}=", "response": "12"}) + "\n" for number in range(8)))
    applied: list[tuple[int, str]] = []
    apply = TorchRolloutEngine.apply

    async def noting(engine: TorchRolloutEngine, tensors: Any, run_epoch: int, step: int, **checked: str) -> str:
        applied.append((step, digest(dict(tensors))))
        return await apply(engine, tensors, run_epoch, step, **checked)

    monkeypatch.setattr(TorchRolloutEngine, "apply", noting)
    config = validate(
        pair_settings(
            tmp_path / "runs",
            {
                "stages": [
                    {
                        "name": "sft",
                        "algorithm": {"name": "sft"},
                        "buffer": {"source": "file", "path": str(examples)},
                        "trainer": {"total_steps": 3, "batch_size": 4},
                    },
                    {"name": "grpo", "trainer": {"total_steps": 2}},
                ]
            },
        )
    )
    first, second = stage_configs(config)
    async with in_process(config), asyncio.timeout(SECONDS):
        ends = await asyncio.gather(
            _run_stages(stage_configs(config), run_trainer), _run_stages(explorer_stage_configs(config), run_explorer)
        )
    assert ends == [0, 0]
    result = load_file(result_folder(first) / "model.safetensors")
    assert [step for step, _ in applied] == [0, 1, 2]
    assert applied[0][1] == digest(result)
    assert applied[2][1] == digest(load_file(result_folder(second) / "model.safetensors"))
    assert (result_folder(second) / "tokenizer.json").exists()
