from pathlib import Path

import pytest
import torch

from common.config.model import DeviceConfig
from common.errors import ConfigError
from tests.support.train_batches import random_batch, tiny_engine
from trainer_service.engine.device import choose_device, prepare_model


def test_asking_for_cuda_where_there_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="allowed here are auto and cpu"):
        choose_device(DeviceConfig(device="cuda"))
    assert choose_device(DeviceConfig(device="auto")).type == "cpu"


def test_dropout_is_switched_off() -> None:
    model = tiny_engine(architecture={"attention_dropout": 0.5})._model
    assert {m.attention_dropout for m in model.modules() if hasattr(m, "attention_dropout")} == {0.0}
    plain = torch.nn.Sequential(torch.nn.Dropout(0.5))
    prepare_model(plain, checkpointing=False)
    assert plain[0].p == 0.0


@pytest.mark.cuda
def test_cuda_trains_like_the_cpu() -> None:
    batch = random_batch(4)
    expected = tiny_engine().train_step(batch).metrics
    result = tiny_engine(trainer={"device": "cuda", "tf32": False}).train_step(batch).metrics
    assert result == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.cuda
def test_cuda_exports_what_the_model_holds() -> None:
    engine = tiny_engine(trainer={"device": "cuda"}, model={"rollout_dtype": "bfloat16"})
    engine.train_step(random_batch(4))
    snapshot = engine.export_weights()
    state = engine._model.state_dict()
    assert snapshot.data.is_pinned()
    for entry in snapshot.manifest.tensors:
        part = snapshot.data[entry.offset : entry.offset + entry.length].view(torch.bfloat16).view(entry.shape)
        assert torch.equal(part, state[entry.name].cpu().to(torch.bfloat16))


@pytest.mark.cuda
def test_cuda_resumes_bit_identical(tmp_path: Path) -> None:
    engine = tiny_engine(trainer={"device": "cuda"})
    engine.train_step(random_batch(1))
    engine.capture().write(tmp_path, hf_layout=False)
    engine.train_step(random_batch(2))
    fresh = tiny_engine(trainer={"device": "cuda"})
    fresh.load(tmp_path)
    fresh.train_step(random_batch(2))
    assert fresh.layout == engine.layout
