"""Whether a checkpoint has what a resume needs: one of an older release may be whole, and still lack it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.checkpoint.manifest_file import CheckpointManifest
from common.errors import CheckpointInvalid
from common.sync.lineage import restore
from trainer_service.buffer.account import ExplorerAccount
from trainer_service.buffer.task_dealer import TaskDealer


def check_explorers_state(manifest: CheckpointManifest) -> None:
    """For a stage with explorers. Raises CheckpointInvalid naming what is missing or malformed."""
    with _naming_what_is_wrong():
        source = manifest.state["source"]
        restore(manifest.run_epoch, source["lineage"])
        for name, account in source["accounts"].items():
            ExplorerAccount.restore(name, account)
        TaskDealer().restore(source["tasks"])
        int(source["ledger"])


def check_examples_state(manifest: CheckpointManifest) -> None:
    """For a stage that trains on a file. Raises CheckpointInvalid naming what is missing."""
    with _naming_what_is_wrong():
        _ = manifest.state["source"]["examples"]


@contextmanager
def _naming_what_is_wrong() -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise CheckpointInvalid(f"its state has no {error}: it was written by another release") from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointInvalid(f"its state is malformed: {error}") from error
