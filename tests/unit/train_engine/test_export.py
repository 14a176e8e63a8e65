import torch

from common.models.causal_lm import rollout_state
from common.weights.manifest import build_manifest
from tests.support.train_batches import random_batch, tiny_engine
from trainer_service.engine.export import BufferPool, WeightExporter


def test_a_snapshot_holds_the_rollout_state_at_the_manifests_offsets() -> None:
    engine = tiny_engine(model={"rollout_dtype": "bfloat16"}, architecture={"tie_word_embeddings": True})
    snapshot = engine.export_weights()
    expected = rollout_state(engine._model, torch.bfloat16)
    assert snapshot.manifest == build_manifest(expected) == engine.layout
    assert snapshot.data.dtype == torch.uint8
    assert snapshot.data.numel() == snapshot.manifest.total_bytes
    for entry in snapshot.manifest.tensors:
        part = snapshot.data[entry.offset : entry.offset + entry.length].view(torch.bfloat16).view(entry.shape)
        assert torch.equal(part, expected[entry.name])


def test_later_steps_and_exports_leave_a_held_snapshot_alone() -> None:
    engine = tiny_engine()
    first = engine.export_weights()
    copy = first.data.clone()
    engine.train_step(random_batch(0))
    second = engine.export_weights()
    assert torch.equal(first.data, copy)
    assert not torch.equal(second.data, copy)
    assert first.manifest.manifest_hash != second.manifest.manifest_hash
    assert first.manifest.layout_hash == second.manifest.layout_hash


def test_the_layouts_hashes_follow_the_weights() -> None:
    engine = tiny_engine()
    before = engine.layout
    engine.train_step(random_batch(0))
    assert engine.layout != before
    assert engine.layout == engine.export_weights().manifest


def test_a_buffer_is_used_again_only_when_nobody_can_read_it() -> None:
    pool = BufferPool(64, pinned=False)
    data = pool.take()
    address = data.data_ptr()
    for hold in (lambda t: t, lambda t: t[3:5], lambda t: t.numpy()[1:], lambda t: memoryview(t.numpy()), list):
        held = hold(data)
        del data
        data = pool.take()
        assert data.data_ptr() != address
        del held, data
        data = pool.take()
        assert data.data_ptr() == address
    assert len(pool) == 2


class Mixed(torch.nn.Module):
    """Buffers whose sizes put a float at an odd offset."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.5, -2.5]))
        self.register_buffer("flags", torch.tensor([1, 2, 3], dtype=torch.uint8))
        self.register_buffer("a_counter", torch.tensor(7, dtype=torch.int64))


def test_tensors_that_are_not_aligned_are_copied_right() -> None:
    model = Mixed()
    snapshot = WeightExporter(model, torch.float32).export()
    assert [(entry.name, entry.offset) for entry in snapshot.manifest.tensors] == [
        ("a_counter", 0),
        ("flags", 8),
        ("weight", 11),
    ]
    assert snapshot.manifest == build_manifest(rollout_state(model, torch.float32))
    assert snapshot.data[11:].clone().view(torch.float32).tolist() == [1.5, -2.5]
