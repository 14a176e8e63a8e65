"""All ledgers of a stage as one history: which records the run's present state descends from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.audit.findings import Finding, Violation
from common.audit.ledger_files import Entry, EpochLedger
from common.audit.records import Cut, Start

NO_END = 1 << 62
"""For what nothing was cut from."""


@dataclass(frozen=True, slots=True)
class Link:
    """The part of a ledger that a state descends from."""

    ledger: EpochLedger
    last: int
    """Number of the last record that counts."""
    step: int
    """Steps done there."""

    def entries(self) -> Iterator[Entry]:
        """The records that count."""
        return (entry for entry in self.ledger.entries if entry.number <= self.last)


class History:
    """The starts of one stage's trainer, and how they follow from one another."""

    def __init__(self, ledgers: Sequence[EpochLedger]) -> None:
        # One that was killed before its first record was on the disk has done nothing else either.
        self.ledgers = tuple(ledger for ledger in ledgers if ledger.start is not None)
        self._by_epoch = {ledger.epoch: ledger for ledger in self.ledgers}
        self._chains: dict[int, tuple[Link, ...]] = {}
        self._limits: dict[tuple[int, int], int] = {}

    @property
    def newest(self) -> EpochLedger | None:
        """The ledger of the newest start; None when there is none."""
        return self.ledgers[-1] if self.ledgers else None

    def start(self, epoch: int) -> Start:
        """The first record of a start that is in `ledgers`."""
        start = self._by_epoch[epoch].start
        if start is None:
            raise KeyError(epoch)
        return start

    def chain(self, epoch: int) -> tuple[Link, ...]:
        """What the state of this start descends from, oldest first, itself at the end; as far as there are ledgers."""
        if epoch not in self._chains:
            self._chains[epoch] = tuple(reversed(list(self._ancestors(epoch))))
        return self._chains[epoch]

    def newest_ancestor(self, epoch: int, of: int) -> int:
        """The newest version of run epoch `of` whose weights the state of `epoch` descends from; -1: none of them."""
        known = self._limits.get((epoch, of))
        if known is None:
            known = self._limits[epoch, of] = self._find_newest_ancestor(epoch, of)
        return known

    def broken_links(self) -> list[Finding]:
        """Starts that went on from what no ledger tells of."""
        found = []
        for ledger in self.ledgers:
            resumed = self.start(ledger.epoch).resumed
            wrong = None if resumed is None else self._why_broken(ledger.epoch, resumed)
            if wrong is not None:
                found.append(Finding(Violation.LEDGER_MISSING, wrong, epoch=ledger.epoch, line=1))
        return found

    def _why_broken(self, epoch: int, cut: Cut) -> str | None:
        where = f"run epoch {epoch} went on from step {cut.step}, after record {cut.record} of run epoch {cut.epoch}"
        if cut.epoch >= epoch:
            return f"{where}, which is not earlier"
        ledger = self._by_epoch.get(cut.epoch)
        if ledger is None:
            return f"{where}, which has no ledger"
        if cut.record >= len(ledger.entries):
            return f"{where}, whose ledger ends with record {len(ledger.entries) - 1}"
        return None

    def _ancestors(self, epoch: int) -> Iterator[Link]:
        last, step = NO_END, NO_END
        ledger = self._by_epoch.get(epoch)
        while ledger is not None:
            yield Link(ledger, last, step)
            cut = self.start(ledger.epoch).resumed
            if cut is None or cut.epoch >= ledger.epoch:
                return
            last, step = cut.record, cut.step
            ledger = self._by_epoch.get(cut.epoch)

    def _find_newest_ancestor(self, epoch: int, of: int) -> int:
        ours = {link.ledger.epoch: link.step for link in self.chain(epoch)}
        limit = NO_END
        while of <= epoch and of in self._by_epoch:
            if of in ours:
                return min(limit, ours[of])
            # Nothing of ours went on from there, but it began with weights that may be ours too.
            began = self.start(of).resumed
            if began is None:
                return 0
            if began.epoch >= of:
                return -1
            of, limit = began.epoch, min(limit, began.step)
        return -1
