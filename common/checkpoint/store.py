"""All checkpoints of a run, in one folder.

A checkpoint's folder is named `step_00000010-e2`: trainer step and run epoch. So a restarted trainer that comes to the
same step again replaces nothing; should even that name be taken, `-r1`, `-r2`, ... follow. Later run epochs are newer than
earlier ones whatever their steps, since they descend from an older checkpoint of these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from common.checkpoint import leases
from common.checkpoint.atomic import atomic_directory, replace_file, storage_errors, sweep
from common.checkpoint.files import read_bounded
from common.checkpoint.manifest_file import CheckpointManifest, verify, write_manifest
from common.errors import CheckpointInvalid, StaleEpoch, StorageFailed

LATEST_NAME = "latest"
EPOCH_NAME = "run_epoch"
MAX_POINTER_BYTES = 256
NAME = re.compile(r"step_(\d{8,18})-e(\d{1,18})(?:-r(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is complete and durable."""

    step: int
    """Trainer steps done."""
    run_epoch: int
    """The trainer's start that wrote it."""
    path: Path
    """Its folder."""
    relative: str
    """Its folder's name under the store's root."""


@dataclass(frozen=True, slots=True)
class RefusedCheckpoint:
    """A folder that looks like a checkpoint and is none."""

    relative: str
    """Its name under the store's root."""
    reason: str
    """Which file, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """The newest checkpoint that verifies."""

    path: Path
    """Its folder."""
    relative: str
    """Its folder's name under the store's root."""
    manifest: CheckpointManifest
    """Step, run epoch, files and state."""
    refused: tuple[RefusedCheckpoint, ...]
    """Newer ones, newest first."""


class CheckpointStore:
    """Writes, finds and deletes the checkpoints below one root. One process writes; any number read.

    The constructor touches nothing: the writer calls `sweep` before its first write.
    """

    def __init__(self, root: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"a store that keeps {keep} checkpoints keeps nothing to resume from")
        self.root = root
        self._keep = keep

    def sweep(self) -> list[str]:
        """Removes what a crash left half written or half deleted; returns the names. For the writer, at its start."""
        return sweep(self.root)

    def claim_run_epoch(self, above: int = 0) -> int:
        """A run epoch above all that this root has seen, and `above` too, durably taken: 1, 2, ... Raises StorageFailed."""
        seen = [epoch for (epoch, _, _), _ in self._candidates()]
        with storage_errors(self.root, "cannot use"):
            self.root.mkdir(parents=True, exist_ok=True)
        epoch = max([*seen, self._claimed(), above]) + 1
        replace_file(self.root / EPOCH_NAME, f"{epoch}\n".encode())
        return epoch

    def write(
        self, step: int, run_epoch: int, fill: Callable[[Path], None], state: Mapping[str, Any]
    ) -> SavedCheckpoint:
        """Writes a checkpoint: `fill` puts the files into the empty folder that it is given; `state` is JSON.

        Returns when it is durable and `latest` names it. Raises StaleEpoch when a later run epoch was claimed: that one's
        writer is the only one now. Raises StorageFailed naming the path when the disk fails; whatever `fill` raises passes.
        In all cases the earlier checkpoints are as they were.
        """
        self._refuse_if_replaced(run_epoch)
        name = self._free_name(step, run_epoch)
        with atomic_directory(self.root, name) as folder:
            try:
                fill(folder)
            except SafetensorError as error:
                # The library has one class for all, disk errors among them.
                raise StorageFailed(f"cannot write {self.root / name}: {error}", path=self.root / name) from error
            write_manifest(folder, step, run_epoch, state)
            # It may have taken long, or been stopped for an hour.
            self._refuse_if_replaced(run_epoch)
        replace_file(self.root / LATEST_NAME, f"{name}\n".encode())
        return SavedCheckpoint(step, run_epoch, self.root / name, name)

    def newest(self, check: Callable[[CheckpointManifest], None] = lambda _manifest: None) -> LoadedCheckpoint | None:
        """The newest checkpoint that verifies, all files read; None when there is no checkpoint at all.

        `check` raises CheckpointInvalid for one whose state is of no use. Raises CheckpointInvalid naming each when there are some and none verifies: to start afresh in their place would
        lose what was acknowledged.
        """
        refused: list[RefusedCheckpoint] = []
        for _, name in self._candidates():
            try:
                manifest = self._verify(name)
                check(manifest)
            except CheckpointInvalid as error:
                refused.append(RefusedCheckpoint(name, error.message))
            else:
                return LoadedCheckpoint(self.root / name, name, manifest, tuple(refused))
        if refused:
            raise CheckpointInvalid(
                "no checkpoint is complete: " + "; ".join(f"{one.relative}: {one.reason}" for one in refused)
            )
        return None

    def latest(self) -> str | None:
        """The name that the `latest` pointer holds; None when there is no pointer. Raises CheckpointInvalid."""
        path = self.root / LATEST_NAME
        if not path.exists():
            return None
        name = read_bounded(path, MAX_POINTER_BYTES).decode(errors="replace").strip()
        if not NAME.fullmatch(name):
            raise CheckpointInvalid(f"{path} names no checkpoint: {ascii(name)[:80]}")
        return name

    @contextmanager
    def hold(self, step: int) -> Iterator[Path]:
        """The folder of the newest checkpoint of this step, which no process deletes meanwhile.

        Raises CheckpointInvalid when there is none. Who has a path already uses `leases.hold`.
        """
        for (_, its_step, _), name in self._candidates():
            if its_step == step:
                with leases.hold(self.root / name) as path:
                    yield path
                return
        raise CheckpointInvalid(f"no checkpoint of step {step} in {self.root}")

    def prune(self) -> list[str]:
        """Deletes what is older than the newest `keep` sound ones; returns the names.

        Sound: manifest, names and sizes are right; the rest does not count towards `keep`. What a reader holds and what
        `latest` names stays, and so does everything newer than the newest `keep`. Raises StorageFailed.
        """
        names = [name for _, name in self._candidates()]
        sound = 0
        while names and sound < self._keep:
            sound += self._is_sound(names.pop(0))
        kept = self.latest()
        return [name for name in names if name != kept and leases.delete_unless_held(self.root / name)]

    def _claimed(self) -> int:
        """The highest run epoch that was claimed; 0: none."""
        path = self.root / EPOCH_NAME
        if not path.exists():
            return 0
        text = read_bounded(path, MAX_POINTER_BYTES)
        if not re.fullmatch(rb"\d{1,18}\n", text):
            raise CheckpointInvalid(f"{path} holds no number")
        return int(text)

    def _refuse_if_replaced(self, run_epoch: int) -> None:
        newest = self._claimed()
        if newest > run_epoch:
            raise StaleEpoch(
                f"run epoch {run_epoch} writes no checkpoints any more: {newest} was claimed",
                epoch=run_epoch,
                newest=newest,
            )

    def _candidates(self) -> list[tuple[tuple[int, int, int], str]]:
        """((run epoch, step, rewrite), name) of all folders that are named like a checkpoint, newest first."""
        found = []
        if self.root.is_dir():
            with storage_errors(self.root, "cannot list"), os.scandir(self.root) as entries:
                for entry in entries:
                    match = NAME.fullmatch(entry.name)
                    if match and entry.is_dir(follow_symlinks=False):
                        step, epoch, rewrite = (int(group or 0) for group in match.groups())
                        found.append(((epoch, step, rewrite), entry.name))
        return sorted(found, reverse=True)

    def _free_name(self, step: int, run_epoch: int) -> str:
        name = plain = f"step_{step:08d}-e{run_epoch}"
        rewrite = 0
        while (self.root / name).exists():
            rewrite += 1
            name = f"{plain}-r{rewrite}"
        return name

    def _verify(self, name: str) -> CheckpointManifest:
        manifest = verify(self.root / name)
        match = NAME.fullmatch(name)
        if match is None or (manifest.step, manifest.run_epoch) != (int(match[1]), int(match[2])):
            raise CheckpointInvalid(f"{name} holds step {manifest.step} of run epoch {manifest.run_epoch}")
        return manifest

    def _is_sound(self, name: str) -> bool:
        try:
            verify(self.root / name, contents=False)
        except CheckpointInvalid:
            return False
        return True
