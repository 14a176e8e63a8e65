"""Each violation, in ledgers written by hand, is found where it is; and what is right is left alone."""

from dataclasses import replace

import pytest

from common.audit.findings import Finding, Violation
from common.audit.ledger_files import CorruptLine, Entry, EpochLedger
from common.audit.records import Record, Skipped
from common.audit.spools import SpoolView
from common.audit.stage import examine
from tests.support.hand_ledgers import Row, dropped, ledger, saved, spool, start, step

# Two groups a batch and a step. The first trainer is killed after step 3, of which no checkpoint tells; the second goes on
# from step 2, trains batch 3 anew, drops batch 4 that was made on the lost version 3, and saves at step 4.
FIRST: tuple[Record, ...] = (
    start(1),
    step(1, Row(1, 0), Row(1, 1)),
    step(2, Row(2, 2, made=(1, 1)), Row(2, 3, made=(1, 1))),
    saved(2, 2, {"e": (2, 4)}),
    step(3, Row(3, 4, made=(1, 2)), Row(3, 5, made=(1, 2))),
)
SECOND: tuple[Record, ...] = (
    start(2, (1, 2, 2), frontiers={"e": (2, 4)}),
    step(3, Row(3, 4, made=(1, 2)), Row(3, 5, made=(1, 2))),
    dropped(4, "lost_lineage", Row(4, 6, made=(1, 3)), Row(4, 7, made=(1, 3))),
    step(4, Row(5, 8, made=(2, 3)), Row(5, 9, made=(2, 3))),
    saved(4, 3, {"e": (5, 10)}),
)
SPOOL = spool(5, 10, (6, 2))


def found(
    first: tuple[Record, ...] = FIRST, second: tuple[Record, ...] = SECOND, spools: dict[str, SpoolView] = SPOOL
) -> list[Finding]:
    return list(examine("main", [ledger(1, *first), ledger(2, *second)], spools).findings)


def with_record(records: tuple[Record, ...], place: int, record: Record) -> tuple[Record, ...]:
    return (*records[:place], record, *records[place + 1 :])


def test_a_run_that_went_on_from_a_checkpoint_is_clean_and_its_account_balances() -> None:
    audit = examine("main", [ledger(1, *FIRST), ledger(2, *SECOND)], SPOOL)
    assert audit.findings == ()
    assert (audit.run, audit.epochs, audit.steps, audit.saved_step) == ("run", 2, 4, 4)
    (account,) = audit.accounts
    assert (account.produced, account.trained, account.dropped) == (12, 8, {"lost_lineage": 2})
    assert (account.lost, account.pending, account.not_applied, account.experiences) == (0, 2, 0, 16)


def test_without_the_spool_the_ledgers_are_proven_alone() -> None:
    audit = examine("main", [ledger(1, *FIRST), ledger(2, *SECOND)], {})
    assert audit.findings == ()
    assert [(account.produced, account.pending) for account in audit.accounts] == [(None, None)]


def test_a_step_without_an_update_counts_its_groups_apart() -> None:
    skipped = step(4, Row(5, 8, made=(2, 3)), Row(5, 9, made=(2, 3)), applied=False)
    audit = examine("main", [ledger(1, *FIRST), ledger(2, *with_record(SECOND, 3, skipped))], SPOOL)
    assert audit.findings == ()
    assert (audit.accounts[0].trained, audit.accounts[0].not_applied) == (6, 2)


def test_a_group_trained_twice() -> None:
    twice = step(4, Row(5, 8, made=(2, 3)), Row(2, 3, made=(1, 1)))
    violations = found(second=with_record(SECOND, 3, twice))
    assert {
        Finding(Violation.TWICE, "group 3 of e was trained or dropped before; this is step 4", 2, 4, 4, "e", 2, 3)
    } <= set(violations)
    assert Violation.MISSING in {one.violation for one in violations}  # group 9, in whose place it came


def test_a_group_trained_and_dropped() -> None:
    both = dropped(4, "lost_lineage", Row(4, 6, made=(1, 3)), Row(4, 7, made=(1, 3)), Row(3, 4, made=(1, 3)))
    assert [(one.violation, one.line, one.ordinal) for one in found(second=with_record(SECOND, 2, both))][:1] == [
        (Violation.TWICE, 3, 4)
    ]


def test_what_the_lost_steps_trained_may_be_trained_again() -> None:
    assert found() == []  # batch 3, by step 3 of both


@pytest.mark.parametrize(
    ("place", "record", "sequence"),
    [
        (1, step(3, Row(3, 4, made=(1, 2))), 3),
        (2, dropped(4, "lost_lineage", Row(4, 7, made=(1, 3))), 4),
        (3, step(4), 5),
    ],
)
def test_a_group_missing_below_the_frontier(place: int, record: Record, sequence: int) -> None:
    violations = [one for one in found(second=with_record(SECOND, place, record)) if one.violation is Violation.MISSING]
    assert (violations[0].epoch, violations[0].line, violations[0].explorer, violations[0].sequence) == (
        2,
        5,
        "e",
        sequence,
    )
    assert "the frontier 5 of the checkpoint of step 4" in violations[0].message


def test_a_checkpoint_that_covers_what_came_after_it() -> None:
    early = with_record(SECOND, 4, saved(3, 1, {"e": (5, 10)}))
    assert [(one.violation, one.sequence) for one in found(second=early)] == [(Violation.MISSING, 4)]


def test_a_miscounted_frontier() -> None:
    (finding,) = found(second=with_record(SECOND, 4, saved(4, 3, {"e": (5, 11)})))
    assert (finding.violation, finding.epoch, finding.line) == (Violation.MISCOUNTED, 2, 5)
    assert "counts 11 groups of e up to batch 5, the records 10" in finding.message


def test_a_frontier_that_went_back() -> None:
    violations = found(second=with_record(SECOND, 4, saved(4, 3, {"e": (1, 2)})))
    assert [(one.violation, one.line, one.sequence) for one in violations] == [
        (Violation.FRONTIER_WENT_BACK, 5, 1),
        (Violation.ACKNOWLEDGED_TOO_EARLY, None, 5),
    ]


@pytest.mark.parametrize(
    ("rows", "violation"),
    [
        ((Row(5, 8, made=(1, 3)), Row(5, 9, made=(2, 3))), Violation.DEAD_LINEAGE),
        ((Row(5, 8, made=(3, 3)), Row(5, 9, made=(2, 3))), Violation.DEAD_LINEAGE),
        ((Row(5, 8, made=(2, 4)), Row(5, 9, made=(2, 3))), Violation.FROM_THE_FUTURE),
        ((Row(5, 8, made=(2, 3), oldest=0), Row(5, 9, made=(2, 3))), Violation.TOO_STALE),
        ((Row(5, 8, made=(2, 2), oldest=3), Row(5, 9, made=(2, 3))), Violation.VERSIONS_REVERSED),
    ],
)
def test_versions_that_must_not_be_trained(rows: tuple[Row, ...], violation: Violation) -> None:
    (finding,) = found(second=with_record(SECOND, 3, step(4, *rows)))
    assert (finding.violation, finding.epoch, finding.line) == (violation, 2, 4)
    assert (finding.step, finding.explorer, finding.sequence, finding.ordinal) == (4, "e", 5, 8)


def test_staleness_at_the_bound_is_within_it() -> None:
    at_bound = step(4, Row(5, 8, made=(2, 3), oldest=1), Row(5, 9, made=(2, 3)))
    assert found(second=with_record(SECOND, 3, at_bound)) == []


@pytest.mark.parametrize(
    "record",
    [
        dropped(4, "lost_lineage", Row(4, 6, made=(1, 2)), Row(4, 7, made=(1, 3))),
        dropped(4, "too_stale", Row(4, 6, made=(1, 2)), Row(4, 7, made=(1, 0))),
    ],
)
def test_a_drop_for_a_reason_that_does_not_hold(record: Record) -> None:
    (finding,) = found(second=with_record(SECOND, 2, record))
    assert (finding.violation, finding.line, finding.ordinal) == (Violation.WRONG_REASON, 3, 6)


def test_weights_of_a_start_from_which_nothing_went_on_are_ours_only_as_it_began() -> None:
    # The second start, from step 2, made version 3 and saved nothing; the third goes on from step 2 as well.
    second = (start(2, (1, 2, 2), frontiers={"e": (2, 4)}), step(3, Row(3, 4, made=(1, 2)), Row(3, 5, made=(1, 2))))
    for made, violations in (((2, 2), []), ((2, 3), [Violation.DEAD_LINEAGE])):
        third = (
            start(3, (1, 2, 2), frontiers={"e": (2, 4)}),
            step(3, Row(3, 4, made=(1, 2)), Row(3, 5, made=(1, 2))),
            step(4, Row(4, 6, made=made), Row(4, 7, made=(3, 3))),
        )
        audit = examine("main", [ledger(1, *FIRST), ledger(2, *second), ledger(3, *third)], {})
        assert [one.violation for one in audit.findings] == violations


def test_initial_weights_are_the_same_for_all_that_start_afresh() -> None:
    second = (start(2), step(1, Row(1, 0, made=(1, 0)), Row(1, 1, made=(2, 0))))
    assert found((start(1),), second, {}) == []


def test_a_group_that_changed_its_batch() -> None:
    moved = step(3, Row(4, 4, made=(1, 2)), Row(3, 5, made=(1, 2)))
    violations = found(second=with_record(SECOND, 1, moved))
    assert Finding(
        Violation.BATCH_CHANGED, "group 4 of e came in another batch before, now in 4", 2, 2, 3, "e", 4, 4
    ) in violations  # fmt: skip


def test_a_batch_that_changed_its_size() -> None:
    grown = step(3, Row(3, 4, of=3, made=(1, 2)), Row(3, 5, of=3, made=(1, 2)))
    assert (Violation.BATCH_CHANGED, 2, 2) in {
        (one.violation, one.epoch, one.line) for one in found(second=with_record(SECOND, 1, grown))
    }


def test_records_out_of_place() -> None:
    whole = ledger(2, *SECOND)
    for entries in (
        (*whole.entries[:3], *whole.entries[4:]),  # one is gone
        (*whole.entries[:3], whole.entries[2], *whole.entries[3:]),  # one twice
        (whole.entries[0], whole.entries[2], whole.entries[1], *whole.entries[3:]),  # two exchanged
    ):
        renumbered = tuple(Entry(line, entry.number, entry.record) for line, entry in enumerate(entries))
        audit = examine("main", [ledger(1, *FIRST), EpochLedger(2, renumbered)], SPOOL)
        assert audit.findings[0].violation is Violation.RECORD_OUT_OF_PLACE
        assert audit.findings[0].epoch == 2


def test_a_start_in_the_middle_and_one_of_another_epoch() -> None:
    in_the_middle = with_record(SECOND, 2, start(2))
    assert (Violation.RECORD_OUT_OF_PLACE, 3) in {(one.violation, one.line) for one in found(second=in_the_middle)}
    of_another = with_record(SECOND, 0, replace(SECOND[0], epoch=7))  # type: ignore[call-arg]
    assert (Violation.RECORD_OUT_OF_PLACE, 1) in {(one.violation, one.line) for one in found(second=of_another)}


def test_a_line_that_is_no_record_and_nothing_else_is_said() -> None:
    torn = EpochLedger(2, ledger(2, *SECOND).entries[:3], (CorruptLine(3, "its hash does not match"),))
    audit = examine("main", [ledger(1, *FIRST), torn], SPOOL)
    assert [(one.violation, one.epoch, one.line) for one in audit.findings] == [(Violation.CORRUPT_RECORD, 2, 4)]


@pytest.mark.parametrize(
    ("place", "record"),
    [
        (3, step(5, Row(5, 8, made=(2, 3)), Row(5, 9, made=(2, 3)))),
        (2, dropped(7, "lost_lineage", Row(4, 6, made=(1, 3)), Row(4, 7, made=(1, 3)))),
        (4, saved(3, 3, {"e": (5, 10)})),
    ],
)
def test_steps_that_do_not_follow(place: int, record: Record) -> None:
    assert (Violation.STEP_OUT_OF_ORDER, 2, place + 1) in {
        (one.violation, one.epoch, one.line) for one in found(second=with_record(SECOND, place, record))
    }


def test_a_checkpoint_that_knows_more_than_the_ledger() -> None:
    beyond = with_record(SECOND, 0, start(2, (1, 2, 9), frontiers={"e": (2, 4)}))
    (finding,) = (one for one in found(second=beyond) if one.violation is Violation.LEDGER_MISSING)
    assert "whose ledger ends with record 4" in finding.message


def test_a_ledger_that_is_gone() -> None:
    audit = examine("main", [ledger(2, *SECOND)], {})
    assert Violation.LEDGER_MISSING in {one.violation for one in audit.findings}


# The second trainer starts afresh, and the explorer has forgotten batches 1 and 2 under the first one's checkpoint.
AFRESH: tuple[Record, ...] = (
    start(2),
    Skipped("e", 2, 4, 4),
    step(1, Row(3, 4, made=(2, 0)), Row(3, 5, made=(2, 0))),
    saved(1, 2, {"e": (3, 6)}),
)


def test_what_a_skip_counts_as_lost_is_not_missing() -> None:
    audit = examine("main", [ledger(1, *FIRST[:4]), ledger(2, *AFRESH)], spool(3, 6, (4, 1)))
    assert audit.findings == ()
    (account,) = audit.accounts
    assert (account.produced, account.trained, account.lost, account.pending) == (7, 2, 4, 1)


def test_before_the_explorer_is_back_what_it_has_forgotten_is_lost_already() -> None:
    audit = examine("main", [ledger(1, *FIRST[:4]), ledger(2, start(2))], spool(2, 4, (3, 2)))
    assert audit.findings == ()
    assert (audit.accounts[0].lost, audit.accounts[0].pending) == (4, 2)


def test_a_skip_that_counts_wrong() -> None:
    wrong = with_record(AFRESH, 1, Skipped("e", 2, 4, 3))
    violations = found(FIRST[:4], wrong, spool(3, 6, (4, 1)))
    assert (violations[0].violation, violations[0].epoch, violations[0].line) == (Violation.MISCOUNTED, 2, 2)
    assert "4 are lost, not 3" in violations[0].message


def test_a_skip_beyond_what_anybody_acknowledged() -> None:
    beyond = (start(2), Skipped("e", 3, 6, 6))
    assert [(one.violation, one.line, one.sequence) for one in found(FIRST[:4], beyond, {})] == [
        (Violation.ACKNOWLEDGED_TOO_EARLY, 2, 3)
    ]


@pytest.mark.parametrize(
    ("spools", "violation", "sequence"),
    [
        (spool(6, 12), Violation.ACKNOWLEDGED_TOO_EARLY, 6),
        (spool(5, 10, (7, 2)), Violation.SPOOL_NOT_CONTIGUOUS, 7),
        (spool(5, 10, (6, 2), last_sequence=7), Violation.SPOOL_NOT_CONTIGUOUS, 7),
        (spool(4, 8), Violation.SPOOL_DIFFERS, 5),
        (spool(4, 8, (5, 3)), Violation.SPOOL_DIFFERS, 5),
        (spool(5, 11, (6, 2)), Violation.MISCOUNTED, 5),
        (spool(5, 10, (6, 2), run_name="other"), Violation.SPOOL_DIFFERS, None),
    ],
)
def test_spools_that_do_not_fit(spools: dict[str, SpoolView], violation: Violation, sequence: int | None) -> None:
    assert (violation, "e", sequence) in {(one.violation, one.explorer, one.sequence) for one in found(spools=spools)}


def test_where_a_finished_step_is_acknowledged_the_frontier_of_the_steps_is_the_bound() -> None:
    only = (start(1, acknowledges_steps=True), *FIRST[1:3])
    for acknowledged, violations in (((2, 4), []), ((3, 6), [Violation.ACKNOWLEDGED_TOO_EARLY])):
        audit = examine("main", [ledger(1, *only)], spool(*acknowledged, (acknowledged[0] + 1, 2)))
        assert [one.violation for one in audit.findings][:1] == violations


def test_while_the_run_goes_on_spools_may_be_ahead_of_and_behind_the_ledgers() -> None:
    before, after = spool(2, 4, (3, 2), (4, 2), (5, 2))["e"].before, spool(5, 10, (6, 2), (7, 2))["e"].after
    audit = examine("main", [ledger(1, *FIRST), ledger(2, *SECOND[:4])], {"e": SpoolView(before, after)})
    assert audit.findings == ()
    assert (audit.accounts[0].produced, audit.accounts[0].pending) == (14, 4)


def test_a_trainer_killed_before_its_first_record_has_done_nothing() -> None:
    audit = examine("main", [ledger(1, *FIRST), ledger(2, *SECOND), EpochLedger(3, ())], SPOOL)
    assert audit.findings == ()
    assert (audit.epochs, audit.steps) == (3, 4)
