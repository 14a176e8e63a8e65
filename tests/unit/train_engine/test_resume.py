import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.errors import CheckpointInvalid, StorageFailed
from tests.support.train_batches import random_batch, tiny_engine
from trainer_service.engine.torch_engine import TorchTrainEngine

EVERYTHING = {
    "minibatches": 2,
    "kl": {"coefficient": 0.1},
    "entropy_coefficient": 0.01,
    "optimizer": {"lr": 1e-2, "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1},
}


def train(engine: TorchTrainEngine, *seeds: int) -> list[dict[str, float]]:
    return [dict(engine.train_step(random_batch(seed)).metrics) for seed in seeds]


@pytest.mark.parametrize("hf_layout", [False, True])
@pytest.mark.parametrize("architecture", [{}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("model", [{}, {"dtype": "bfloat16"}])
def test_a_resumed_run_is_bit_identical(
    tmp_path: Path, hf_layout: bool, architecture: dict[str, Any], model: dict[str, Any]
) -> None:
    engine = tiny_engine(9, algorithm=EVERYTHING, architecture=architecture, model=model)
    train(engine, 1, 2, 3)
    captured = engine.capture()
    expected = train(engine, 4, 5)
    captured.write(tmp_path, hf_layout=hf_layout)

    fresh = tiny_engine(9, algorithm=EVERYTHING, architecture=architecture, model=model)
    fresh.load(tmp_path)
    assert train(fresh, 4, 5) == expected
    assert fresh.layout == engine.layout
    theirs, ours = engine.capture(), fresh.capture()
    assert theirs.state == ours.state
    assert all(torch.equal(theirs.moments[name], ours.moments[name]) for name in theirs.moments)


@pytest.mark.parametrize("tied", [False, True])
def test_the_hugging_face_layout_opens_with_the_same_logits(tmp_path: Path, tied: bool) -> None:
    engine = tiny_engine(architecture={"tie_word_embeddings": tied})
    train(engine, 1)
    engine.capture().write(tmp_path, hf_layout=True)
    ids = torch.tensor([[3, 4, 5]])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, engine._model(input_ids=ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path).encode("12+3") == engine._tokenizer.encode("12+3")
    assert set(load_file(tmp_path / "model.safetensors")) == {entry.name for entry in engine.layout.tensors}


def test_masters_are_kept_in_their_own_precision(tmp_path: Path) -> None:
    engine = tiny_engine(model={"rollout_dtype": "bfloat16"})
    engine.capture().write(tmp_path, hf_layout=False)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.float32}
    assert {entry.dtype for entry in engine.layout.tensors} == {"BF16"}


def test_a_checkpoint_of_another_reference_is_refused(tmp_path: Path) -> None:
    tiny_engine(algorithm={"kl": {"coefficient": 0.1}}).capture().write(tmp_path, hf_layout=False)
    other = tiny_engine(algorithm={"kl": {"coefficient": 0.1}}, architecture={"initializer_range": 0.2})
    with pytest.raises(CheckpointInvalid, match="another reference model"):
        other.load(tmp_path)
    with pytest.raises(CheckpointInvalid, match="another reference model"):
        tiny_engine().load(tmp_path)


def damage_json(folder: Path, **values: Any) -> None:
    path = folder / "engine.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def damage_tensors(folder: Path, file: str, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / file)
    name = name or next(iter(tensors))
    save_file(
        {**tensors, name: tensor} if tensor is not None else {k: v for k, v in tensors.items() if k != name},
        folder / file,
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "engine.json").unlink(),
        lambda folder: (folder / "engine.json").write_text("{"),
        lambda folder: damage_json(folder, steps=-1),
        lambda folder: damage_json(folder, format=2),
        lambda folder: damage_json(folder, cpu_rng="zz"),
        lambda folder: damage_json(folder, shuffle_rng="00"),
        lambda folder: (folder / "optimizer.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64),
        lambda folder: damage_tensors(folder, "optimizer.safetensors", "", None),
        lambda folder: damage_tensors(folder, "optimizer.safetensors", "x/exp_avg", torch.zeros(1)),
        lambda folder: damage_tensors(folder, "optimizer.safetensors", "model.norm.weight/exp_avg", torch.zeros(1)),
        lambda folder: damage_tensors(folder, "model.safetensors", "model.norm.weight", torch.zeros(3)),
        lambda folder: damage_tensors(folder, "model.safetensors", "model.norm.weight", None),
        lambda folder: damage_tensors(folder, "model.safetensors", "extra", torch.zeros(3)),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(tmp_path: Path, damage: Any) -> None:
    saved = tiny_engine()
    train(saved, 1)
    saved.capture().write(tmp_path, hf_layout=False)
    damage(tmp_path)
    engine = tiny_engine()
    train(engine, 2)
    before = engine.capture()
    with pytest.raises(CheckpointInvalid):
        engine.load(tmp_path)
    after = engine.capture()
    assert after.state == before.state
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in before.weights)
    assert all(torch.equal(after.moments[name], before.moments[name]) for name in before.moments)


def test_a_folder_that_cannot_be_written_is_a_storage_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        tiny_engine().capture().write(tmp_path / "missing", hf_layout=False)


@pytest.mark.parametrize("deterministic", [False, True])
def test_two_engines_of_one_seed_train_alike(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        first, second = (tiny_engine(5, algorithm=EVERYTHING, run={"deterministic": deterministic}) for _ in range(2))
        assert torch.are_deterministic_algorithms_enabled() is deterministic
        assert train(first, 1, 2) == train(second, 1, 2)
        assert first.layout == second.layout
    finally:
        torch.use_deterministic_algorithms(mode=False)
