"""Saves: one consistent cut of the trainer's state in one folder.

The cut is taken between two steps: weights, optimizer and RNG by the engine's capture, the step, the run's lineage and
every explorer's account beside it. Writing goes on in the background while training does; a batch is acknowledged to its
explorer only when the cut that covers it is durable.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from common.checkpoint.atomic import atomic_directory
from common.checkpoint.store import CheckpointStore, LoadedCheckpoint, SavedCheckpoint
from common.config.root import TandemConfig
from common.errors import WaitTimedOut
from common.status import StatusBoard
from trainer_service.engine.base import EngineCapture, TrainEngine
from trainer_service.engine.worker import EngineWorker
from trainer_service.ledger import LedgerFile

log = structlog.get_logger(__name__)

ENGINE_STATE_FILES = ("optimizer.safetensors", "engine.json", "manifest.json", "reference.safetensors")
"""What a checkpoint holds beside the model itself."""


@dataclass(frozen=True, slots=True, eq=False)
class _Save:
    """A save in progress or done."""

    saved: asyncio.Future[SavedCheckpoint]
    hf_layout: bool


class Saver:
    """Decides when to save, and saves."""

    def __init__(
        self,
        config: TandemConfig,
        store: CheckpointStore,
        engine: TrainEngine,
        worker: EngineWorker,
        run_epoch: int,
        on_durable: Callable[[Mapping[str, Any]], None],
        resumed: LoadedCheckpoint | None = None,
        ledger: LedgerFile | None = None,
        *,
        status: StatusBoard[int] | None = None,
    ) -> None:
        """`on_durable` gets the state that was saved, once it is durable; `resumed` is not written again.

        What `ledger` has of a cut is durable before the cut is, and its record of the cut before `on_durable`. `status`
        shows the saves in progress.
        """
        self._status: StatusBoard[int] = status if status is not None else StatusBoard(0)
        self._timeout = config.checkpoint.timeout
        self._interval = config.checkpoint.save_interval
        self._hf = config.checkpoint.save_hf_checkpoint
        self._store = store
        self._engine = engine
        self._worker = worker
        self._run_epoch = run_epoch
        self._on_durable = on_durable
        self._ledger = ledger
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saves: dict[int, _Save] = {}
        self.disk_hangs = False
        """A save was not durable in time: the disk's thread may never come back, and no other save can begin."""
        self.saved_step = 0
        """Step of the newest durable checkpoint; 0 = none."""
        self.seconds = 0.0
        """How long the newest save took."""
        if resumed is not None:
            self._remember(resumed)

    def is_due(self, step: int) -> bool:
        """Whether the interval asks for a save at this step."""
        return self._interval is not None and step % self._interval == 0

    def saving_at(self, step: int) -> asyncio.Future[SavedCheckpoint] | None:
        """The save of this step, in progress or done."""
        save = self._saves.get(step)
        return save.saved if save is not None else None

    def begin(self, step: int, state: Mapping[str, Any], *, final: bool = False) -> asyncio.Future[SavedCheckpoint]:
        """Takes the cut before any later step, and writes it in the background.

        Once a step; again only when the final save needs the Hugging Face layout and the one before has it not.
        """
        hf_layout = self._hf == "always" or (final and self._hf == "last")
        earlier = self._saves.get(step)
        if earlier is not None and (earlier.hf_layout or not hf_layout):
            return earlier.saved
        capture = self._worker.submit(self._engine.capture)
        saved = asyncio.create_task(self._save(step, dict(state), capture, hf_layout=hf_layout))
        # Those that are done and not the newest are only on disk from here on.
        self._saves = {at: save for at, save in self._saves.items() if not save.saved.done() or at == self.saved_step}
        self._saves[step] = _Save(saved, hf_layout)
        return saved

    async def all_done(self) -> None:
        """Returns when no save is in progress; raises what one failed with."""
        for save in list(self._saves.values()):
            await save.saved

    def raise_failure(self) -> None:
        """Raises what a background save failed with, if one did."""
        for save in self._saves.values():
            if save.saved.done():
                save.saved.result()

    def close(self) -> None:
        """Ends the disk's thread; a write in progress is finished, unless the disk hangs."""
        self._disk.shutdown(wait=not self.disk_hangs)

    def _remember(self, resumed: LoadedCheckpoint) -> None:
        step, run_epoch = resumed.manifest.step, resumed.manifest.run_epoch
        saved: asyncio.Future[SavedCheckpoint] = asyncio.get_running_loop().create_future()
        saved.set_result(SavedCheckpoint(step, run_epoch, resumed.path, resumed.relative))
        self._saves[step] = _Save(saved, hf_layout=(resumed.path / "config.json").exists())
        self.saved_step = step

    async def _save(
        self, step: int, state: dict[str, Any], captured: asyncio.Future[EngineCapture], *, hf_layout: bool
    ) -> SavedCheckpoint:
        began = time.monotonic()
        capture = await captured
        loop = asyncio.get_running_loop()
        try:
            async with self._status.waiting(f"the checkpoint of step {step} to be durable", self._timeout):
                saved = await loop.run_in_executor(self._disk, self._write, step, state, capture, hf_layout)
        except WaitTimedOut:
            self.disk_hangs = True
            raise
        self.seconds = time.monotonic() - began
        self.saved_step = max(step, self.saved_step)
        log.info("checkpoint_saved", step=step, path=str(saved.path), seconds=round(self.seconds, 3))
        self._on_durable(state)
        return saved

    def _write(self, step: int, state: dict[str, Any], capture: EngineCapture, hf_layout: bool) -> SavedCheckpoint:
        if self._ledger is not None:
            self._ledger.sync()
        saved = self._store.write(
            step, self._run_epoch, lambda folder: capture.write(folder, hf_layout=hf_layout), state
        )
        if self._ledger is not None:
            self._ledger.saved(step, state)
        for name in self._store.prune():
            log.info("checkpoint_deleted", checkpoint=name)
        return saved


def publish_result(checkpoint: Path, result: Path) -> None:
    """Puts the model of a finished stage, without the trainer's state, into `result`, in place of an earlier one.

    Files are hard-linked where the file system can, else copied.
    """
    if result.exists():
        shutil.rmtree(result)
    result.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(result.parent, result.name) as folder:
        for source in checkpoint.iterdir():
            if source.name in ENGINE_STATE_FILES:
                continue
            try:
                os.link(source, folder / source.name)
            except OSError:
                shutil.copyfile(source, folder / source.name)
