"""What a checkpoint must have for a resume."""

from typing import Any

import pytest

from common.checkpoint.manifest_file import CheckpointManifest
from common.errors import CheckpointInvalid
from common.sync.task_pool import TaskPool
from trainer_service.resumable import check_examples_state, check_explorers_state

SOURCE: dict[str, Any] = {
    "accounts": {"e": {"frontier": 3, "groups_below_frontier": 6, "gone_beyond": {"5": [9]}}},
    "lineage": [[1, 4]],
    "tasks": {"order_hash": "x", "total": None, "pool": TaskPool().state()},
    "ledger": 12,
}


def manifest(source: object) -> CheckpointManifest:
    return CheckpointManifest(step=5, run_epoch=2, files=(), state={"step": 5, "source": source})


@pytest.mark.parametrize("missing", sorted(SOURCE))
def test_a_state_that_lacks_something_is_refused_with_its_name(missing: str) -> None:
    with pytest.raises(CheckpointInvalid, match=missing):
        check_explorers_state(manifest({name: value for name, value in SOURCE.items() if name != missing}))


def test_what_a_trainer_writes_is_taken() -> None:
    check_explorers_state(manifest(SOURCE))


@pytest.mark.parametrize(
    "source",
    [None, [], {"examples": 1}, {**SOURCE, "lineage": [[1]]}, {**SOURCE, "accounts": [1]}, {**SOURCE, "ledger": "x"}],
)
def test_a_state_of_another_shape_is_refused(source: object) -> None:
    with pytest.raises(CheckpointInvalid):
        check_explorers_state(manifest(source))


def test_a_stage_on_a_file_needs_its_cursor() -> None:
    check_examples_state(manifest({"examples": {}}))
    with pytest.raises(CheckpointInvalid, match="examples"):
        check_examples_state(manifest(SOURCE))
