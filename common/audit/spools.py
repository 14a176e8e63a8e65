"""What lies in the explorers' spools against what the ledgers tell."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.audit.findings import Finding, Violation
from common.audit.frontiers import Frontiers
from common.audit.history import NO_END
from common.checkpoint.atomic import storage_errors
from common.errors import MalformedData
from common.spool_file import SpoolContents, read_spool

FOLDER = "explorers"
SUFFIX = ".spool"
MAX_SPOOLS = 65_536


@dataclass(frozen=True, slots=True)
class SpoolView:
    """A spool as it was before the ledgers were read, and as it was after: while a run goes on, both move.

    What was acknowledged before is in ledgers that are read later; what is in these is in a spool that is read after that.
    """

    before: SpoolContents
    after: SpoolContents

    @property
    def explorer(self) -> str:
        """Whose it is."""
        return self.before.explorer_id

    @property
    def batches(self) -> dict[int, int]:
        """Groups of each batch, by sequence number, from the first that was not acknowledged before."""
        return dict(self.before.batches) | dict(self.after.batches)

    @property
    def is_whole(self) -> bool:
        """Whether no batch was made and forgotten in between."""
        return self.after.acknowledged <= self.before.last_sequence

    @property
    def produced(self) -> int:
        """Groups that were ever in a batch."""
        return self.after.produced


def read_spools(stage_folder: Path) -> dict[str, SpoolContents]:
    """All spools of a stage on this machine, by explorer. Raises StorageFailed or MalformedData for one that cannot be read."""
    folder = stage_folder / FOLDER
    if not folder.is_dir():
        return {}
    with storage_errors(folder, "cannot list"):
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))  # noqa: PTH208 - names, sorted
    if len(names) > MAX_SPOOLS:
        raise MalformedData(f"{folder} has more than {MAX_SPOOLS} spools")
    found: dict[str, SpoolContents] = {}
    for name in names:
        contents = read_spool(folder / name)
        if contents is None:
            continue
        if contents.explorer_id in found:
            raise MalformedData(f"{folder} has two spools of explorer {ascii(contents.explorer_id)[:80]}")
        found[contents.explorer_id] = contents
    return found


def views(before: Mapping[str, SpoolContents], after: Mapping[str, SpoolContents]) -> dict[str, SpoolView]:
    """The spools, by explorer; one that was not there before has had nothing acknowledged."""
    return {
        name: SpoolView(before.get(name, SpoolContents(spool.run_name, name, 0, 0, 0, ())), spool)
        for name, spool in after.items()
    }


def check_spool(spool: SpoolView, run: str, frontiers: Frontiers, highest: int) -> Iterator[Finding]:
    """Of one spool. `highest` is the highest sequence number of its explorer in any ledger."""
    explorer = spool.explorer
    if spool.after.run_name != run:
        message = f"the spool of {explorer} belongs to run {spool.after.run_name}, the ledgers to {run}"
        yield Finding(Violation.SPOOL_DIFFERS, message, explorer=explorer)
    for contents in (spool.before, spool.after):
        yield from _check_contiguous(contents)
    if highest > spool.after.last_sequence:
        message = f"the ledgers have batch {highest} of {explorer}, its spool has made {spool.after.last_sequence}"
        yield Finding(Violation.SPOOL_DIFFERS, message, explorer=explorer, sequence=highest)
    yield from _check_acknowledged(spool.before, frontiers)
    completeness = frontiers.of(explorer)
    for sequence, groups in spool.batches.items():
        known = completeness.of_batch(sequence)
        if known is not None and known[1] != groups:
            message = f"batch {sequence} of {explorer} has {groups} groups in its spool, {known[1]} in the ledgers"
            yield Finding(Violation.SPOOL_DIFFERS, message, explorer=explorer, sequence=sequence)


def is_settled(contents: SpoolContents, frontiers: Frontiers) -> bool:
    """Whether what it has forgotten was acknowledged to it by, or counted as lost in, what the present state descends from.

    If not, an earlier start acknowledged it under a checkpoint that the newest one did not go on from: what that one does not
    know will be counted as lost when the explorer is back.
    """
    explorer = contents.explorer_id
    return explorer in frontiers.met or contents.acknowledged <= frontiers.newest(explorer)


def _check_contiguous(contents: SpoolContents) -> Iterator[Finding]:
    explorer = contents.explorer_id
    expected = contents.acknowledged + 1
    for sequence, _ in contents.batches:
        if sequence != expected:
            message = f"the spool of {explorer} goes on with batch {sequence}, {expected} was to come"
            yield Finding(Violation.SPOOL_NOT_CONTIGUOUS, message, explorer=explorer, sequence=sequence)
            return
        expected += 1
    if expected != contents.last_sequence + 1:
        message = f"the spool of {explorer} ends with batch {expected - 1}, it has made {contents.last_sequence}"
        yield Finding(Violation.SPOOL_NOT_CONTIGUOUS, message, explorer=explorer, sequence=expected)


def _check_acknowledged(contents: SpoolContents, frontiers: Frontiers) -> Iterator[Finding]:
    explorer, acknowledged = contents.explorer_id, contents.acknowledged
    if acknowledged > frontiers.allowed.get(explorer, 0):
        message = (
            f"{explorer} has forgotten its batches up to {acknowledged}; what is durable reaches to "
            f"{frontiers.allowed.get(explorer, 0)}"
        )
        yield Finding(Violation.ACKNOWLEDGED_TOO_EARLY, message, explorer=explorer, sequence=acknowledged)
    if not is_settled(contents, frontiers):
        return
    completeness = frontiers.of(explorer)
    missing = completeness.first_missing(acknowledged)
    if missing is not None:
        yield frontiers.missing(explorer, missing, f"what was acknowledged, {acknowledged}")
        return
    groups = completeness.groups_through(acknowledged)
    # Where an earlier start acknowledged more and has lost it, a skip says how many groups there are.
    if acknowledged >= completeness.skipped(NO_END).through and groups != contents.acknowledged_groups:
        message = (
            f"{explorer} has forgotten {contents.acknowledged_groups} groups up to batch {acknowledged}, the records "
            f"come to {groups}"
        )
        yield Finding(Violation.MISCOUNTED, message, explorer=explorer, sequence=acknowledged)
