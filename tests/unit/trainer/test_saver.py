"""Saves: one a step, acknowledged when durable, failures told."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from common.checkpoint.store import CheckpointStore
from common.config.root import TandemConfig
from common.errors import StorageFailed, WaitTimedOut
from trainer_service.engine.worker import EngineWorker
from trainer_service.saver import Saver, publish_result


class Capturing:
    """An engine whose state is one number, and a disk that may be full."""

    def __init__(self) -> None:
        self.value = 0
        self.full = False
        self.captures = 0
        self.before_writing: Callable[[], object] = lambda: None

    def capture(self) -> Any:
        self.captures += 1
        engine, value = self, self.value

        class Capture:
            def write(self, folder: Path, *, hf_layout: bool) -> None:
                engine.before_writing()
                if engine.full:
                    raise OSError(28, "No space left on device")
                (folder / "model.safetensors").write_text(str(value))
                if hf_layout:
                    (folder / "config.json").write_text("{}")

        return Capture()


class Fixture:
    def __init__(self, root: Path, **checkpoint: Any) -> None:
        model = {"architecture": {"model_type": "llama"}, "tokenizer": "characters:ab"}
        self.config = TandemConfig.model_validate({"model": model, "checkpoint": {"root": str(root), **checkpoint}})
        self.store = CheckpointStore(root, 3)
        self.engine = Capturing()
        self.worker = EngineWorker()
        self.durable: list[dict[str, Any]] = []
        self.saver = self.again()

    def again(self, resumed: Any = None) -> Saver:
        engine: Any = self.engine
        return Saver(
            self.config, self.store, engine, self.worker, 1, lambda state: self.durable.append(dict(state)), resumed
        )


@pytest_asyncio.fixture
async def fixture(tmp_path: Path) -> AsyncIterator[Fixture]:
    made = Fixture(tmp_path / "checkpoints", save_interval=2)
    yield made
    made.saver.close()
    made.worker.close()


async def test_a_disk_that_hangs_fails_the_save_in_time_and_holds_up_no_end(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "checkpoints", timeout=0.05)
    hangs = threading.Event()
    fixture.engine.before_writing = hangs.wait
    try:
        with pytest.raises(WaitTimedOut, match=r"waited 0\.05 seconds for the checkpoint of step 2 to be durable"):
            await fixture.saver.begin(2, {"step": 2})
        assert fixture.durable == []
        fixture.saver.close()
    finally:
        hangs.set()
        fixture.worker.close()


async def test_the_state_of_the_moment_is_saved_and_acknowledged_when_durable(fixture: Fixture) -> None:
    fixture.engine.value = 7
    state = {"step": 2}
    saving = fixture.saver.begin(2, state)
    assert fixture.durable == []
    state["step"] = 99
    saved = await saving
    assert (saved.path / "model.safetensors").read_text() == "7"
    assert fixture.durable == [{"step": 2}]
    assert fixture.saver.saved_step == 2
    newest = fixture.store.newest()
    assert newest is not None
    assert newest.manifest.state == {"step": 2}


async def test_a_step_is_saved_once_unless_the_final_save_adds_the_hugging_face_layout(fixture: Fixture) -> None:
    first = fixture.saver.begin(2, {})
    assert fixture.saver.begin(2, {}) is first
    assert fixture.engine.captures == 1
    final = fixture.saver.begin(2, {}, final=True)
    assert final is not first
    assert (await final).path.joinpath("config.json").exists()
    assert not (await first).path.joinpath("config.json").exists()
    assert fixture.saver.begin(2, {}, final=True) is final


async def test_what_was_resumed_is_not_written_again(fixture: Fixture) -> None:
    await fixture.saver.begin(4, {}, final=True)
    resumed = fixture.again(fixture.store.newest())
    saved = await resumed.begin(4, {}, final=True)
    assert fixture.engine.captures == 1
    assert (saved.step, resumed.saved_step) == (4, 4)
    resumed.close()


async def test_the_interval_counts_steps(fixture: Fixture) -> None:
    assert [step for step in range(1, 7) if fixture.saver.is_due(step)] == [2, 4, 6]


async def test_a_full_disk_is_told_acknowledges_nothing_and_leaves_the_one_before(fixture: Fixture) -> None:
    await fixture.saver.begin(2, {"step": 2})
    fixture.engine.full = True
    failing = fixture.saver.begin(4, {"step": 4})
    fixture.saver.raise_failure()  # not known yet
    await asyncio.wait([failing])
    with pytest.raises(StorageFailed, match="No space left"):
        fixture.saver.raise_failure()
    with pytest.raises(StorageFailed):
        await fixture.saver.all_done()
    assert fixture.durable == [{"step": 2}]
    newest = fixture.store.newest()
    assert newest is not None
    assert (newest.manifest.step, fixture.saver.saved_step) == (2, 2)


async def test_a_checkpoint_is_not_durable_before_the_ledger_of_what_it_covers_nor_acknowledged_before_its_record(
    fixture: Fixture,
) -> None:
    happened: list[str] = []

    class Recording:
        broken = False

        def sync(self) -> None:
            happened.append(f"sync, {len(list(fixture.store.root.glob('step_*')))} checkpoints")
            if self.broken:
                raise StorageFailed("ledger: Input/output error")

        def saved(self, step: int, state: dict[str, Any]) -> None:
            happened.append(f"record of {step}, {len(fixture.durable)} acknowledged")

    ledger: Any = Recording()
    engine: Any = fixture.engine
    saver = Saver(
        fixture.config,
        fixture.store,
        engine,
        fixture.worker,
        1,
        lambda s: fixture.durable.append(dict(s)),
        None,
        ledger,
    )
    await saver.begin(2, {"step": 2})
    assert happened == ["sync, 0 checkpoints", "record of 2, 0 acknowledged"]
    ledger.broken = True
    with pytest.raises(StorageFailed, match="ledger"):
        await saver.begin(4, {"step": 4})
    assert len(list(fixture.store.root.glob("step_*"))) == len(fixture.durable) == 1
    saver.close()


async def test_a_result_holds_the_model_without_the_trainers_state_and_takes_an_earlier_ones_place(
    tmp_path: Path,
) -> None:
    checkpoint, result = tmp_path / "checkpoint", tmp_path / "stage" / "result"
    checkpoint.mkdir()
    for name in ("model.safetensors", "config.json", "optimizer.safetensors", "engine.json", "manifest.json"):
        (checkpoint / name).write_text(name)
    result.mkdir(parents=True)
    (result / "stale.txt").write_text("")
    publish_result(checkpoint, result)
    assert sorted(path.name for path in result.iterdir()) == ["config.json", "model.safetensors"]
