"""`tandem audit`: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest

from common.audit.records import Record, encode
from common.cli.app import main
from explorer_service.spool import Spool
from tests.support.hand_ledgers import Row, saved, start, step

CLEAN: tuple[Record, ...] = (
    start(1),
    step(1, Row(1, 0), Row(1, 1)),
    step(2, Row(2, 2, made=(1, 1)), Row(2, 3, made=(1, 1)), applied=False),
    saved(2, 2, {"e": (2, 4)}),
)
WRONG = (*CLEAN[:2], step(2, Row(2, 2, made=(1, 1)), Row(1, 1, made=(1, 1))), CLEAN[3])


def stage(run: Path, name: str, *records: Record) -> Path:
    folder = run / name
    (folder / "ledger").mkdir(parents=True)
    lines = (encode(number, record) for number, record in enumerate(records))
    (folder / "ledger" / "epoch-000001.jsonl").write_bytes(b"".join(lines))
    return folder


def spooled(folder: Path) -> None:
    spool = Spool.open(folder / "explorers" / "e.spool", "run", "e")
    for _ in range(3):
        spool.append(lambda _: b"batch", 2, {})
    spool.acknowledge(2)
    spool.close()


def tandem_audit(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["tandem", "audit", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_clean_stage_is_shown_with_what_became_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spooled(stage(tmp_path, "main", *CLEAN))
    assert tandem_audit(monkeypatch, tmp_path / "main") == 0
    head, names, numbers, verdict = capsys.readouterr().out.splitlines()
    assert head == "stage main of run run: 2 steps, saved up to step 2, 1 start of the trainer"
    assert names.split() == ["explorer", "produced", "trained", "no", "update", "lost", "pending"]
    assert numbers.split() == ["e", "6", "2", "2", "0", "2"]
    assert verdict == "clean: every group left once at most, and none is missing"


def test_findings_are_told_in_words_with_their_record_and_are_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(tmp_path, "main", *WRONG)
    assert tandem_audit(monkeypatch, tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "twice: group 1 of e was trained or dropped before; this is step 2 (run epoch 1, line 3)" in lines
    assert any(
        line.startswith("missing: batch 2 of e is below the frontier 2 of the checkpoint of step 2") for line in lines
    )
    assert any("the explorer's spool is not on this machine" in line for line in lines)


def test_all_stages_of_a_run_as_one_json_object_on_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sft").mkdir()  # trained on a file: there is nothing to account for
    stage(tmp_path, "first", *CLEAN)
    stage(tmp_path, "second", *WRONG)
    assert tandem_audit(monkeypatch, tmp_path, "--json") == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["clean"] is False
    first, second = said["stages"]
    assert (first["stage"], first["steps"], first["findings"]) == ("first", 2, [])
    assert first["accounts"] == [
        {
            "explorer": "e",
            "trained": 2,
            "not_applied": 2,
            "dropped": {},
            "lost": 0,
            "experiences": 4,
            "produced": None,
            "pending": None,
        }
    ]
    assert {
        "violation": "twice",
        "message": "group 1 of e was trained or dropped before; this is step 2",
        "epoch": 1,
        "line": 3,
        "step": 2,
        "explorer": "e",
        "sequence": 1,
        "ordinal": 1,
    } in second["findings"]


def test_what_cannot_be_read_is_exit_code_2_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    folder = stage(tmp_path, "main", *CLEAN)
    (folder / "explorers").mkdir()
    (folder / "explorers" / "e.spool").write_bytes(b"x" * 5000)
    for path, why in (
        (tmp_path / "nowhere", "no folder"),
        (tmp_path / "empty", "no ledger"),
        (folder, "not a database"),
    ):
        assert tandem_audit(monkeypatch, path) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("tandem: ")
        assert why in said.err


def test_names_in_a_ledger_cannot_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row(1, 0, of=1, explorer="[red]\x1b[2Je")
    stage(tmp_path, "main", start(1, run="\x1b]0;run\x07"), step(1, row), step(2, row))
    assert tandem_audit(monkeypatch, tmp_path) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "[red]" in said
