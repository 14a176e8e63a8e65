"""Whatever crashes a run has seen, its audit is clean; and one record that is not as it was is found."""

import random
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.audit.ledger_files import Entry, EpochLedger
from common.audit.records import Dropped, Step
from common.audit.stage import examine
from tests.support.crash_history import CrashHistory
from tests.support.hand_ledgers import groups, rows_of

seeds = st.integers(0, 2**32 - 1)
changes = st.sampled_from(["twice", "gone", "elsewhere"])


def drawn(pick: random.Random) -> CrashHistory:
    return CrashHistory(pick, pick.randint(1, 3), pick.randint(0, 400), by_steps=pick.random() < 0.3)


@given(seeds)
@settings(deadline=None, max_examples=150)
def test_a_run_that_crashes_at_any_moments_audits_clean_and_balances(seed: int) -> None:
    history = drawn(random.Random(seed))
    audit = examine("main", history.ledgers, history.spools)
    assert audit.findings == ()
    for account in audit.accounts:
        known = account.trained + account.not_applied + sum(account.dropped.values()) + account.lost
        assert account.pending is not None
        assert account.produced == known + account.pending


@given(seeds, changes)
@settings(deadline=None, max_examples=150)
def test_a_record_that_is_there_twice_or_gone_or_elsewhere_is_found(seed: int, what: str) -> None:
    pick = random.Random(seed)
    history = drawn(pick)
    ledgers = history.ledgers
    long_enough = [number for number, ledger in enumerate(ledgers) if len(ledger.entries) > 1]
    assume(long_enough)
    chosen = pick.choice(long_enough)
    entries = list(ledgers[chosen].entries)
    place = pick.randrange(len(entries) - 1)  # a last record that is gone is as if the crash had come before it
    if what == "twice":
        entries.insert(pick.randint(place, len(entries)), entries[place])
    else:
        entry = entries.pop(place)
        if what == "elsewhere":
            entries.insert(pick.choice([at for at in range(len(entries) + 1) if at != place]), entry)
    changed = tuple(Entry(at, one.number, one.record) for at, one in enumerate(entries))
    ledgers[chosen] = EpochLedger(ledgers[chosen].epoch, changed)
    assert examine("main", ledgers, history.spools).findings


@given(seeds, changes)
@settings(deadline=None, max_examples=150)
def test_a_group_that_is_there_twice_or_gone_or_elsewhere_is_found(seed: int, what: str) -> None:
    """The records themselves are in their places, as a trainer that counts wrong would write them."""
    pick = random.Random(seed)
    history = drawn(pick)
    places = [place for place in _alive(history) if isinstance(_record(history, *place), Step | Dropped)]
    chosen = [
        (*place, number)
        for place in places
        for number, row in enumerate(rows_of(_record(history, *place)))
        if what == "twice" or row.sequence <= history.proven_through(row.explorer)
    ]
    assume(chosen)
    epoch, line, number = pick.choice(chosen)
    record = _record(history, epoch, line)
    row = rows_of(record)[number]
    if what != "twice":
        left = [other for other in rows_of(record) if other != row]
        _put(history, epoch, line, replace(record, groups=groups(left)))
    if what != "gone":
        epoch, line = pick.choice(places)
        record = _record(history, epoch, line)
        added = row if what == "twice" else replace(row, sequence=row.sequence + 1)
        _put(history, epoch, line, replace(record, groups=groups([*rows_of(record), added])))
    assert examine("main", history.ledgers, history.spools).findings


def _record(history: CrashHistory, epoch: int, line: int) -> Step | Dropped:
    return history.epochs[epoch - 1][line]  # type: ignore[return-value]


def _put(history: CrashHistory, epoch: int, line: int, record: Step | Dropped) -> None:
    history.epochs[epoch - 1][line] = record


def _alive(history: CrashHistory) -> list[tuple[int, int]]:
    """(run epoch, line) of the records that the present state descends from, followed back by hand."""
    epoch, last = len(history.epochs), len(history.epochs[-1]) - 1
    found: list[tuple[int, int]] = []
    while True:
        found += [(epoch, line) for line in range(last + 1)]
        resumed = history.epochs[epoch - 1][0].resumed  # type: ignore[union-attr]
        if resumed is None:
            return found
        epoch, last = resumed.epoch, resumed.record
