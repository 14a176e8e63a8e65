"""The command line itself: help, version, check, and errors without tracebacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from common import __version__
from common.cli.app import app, main
from common.config.load import load_config

ROOT = Path(__file__).parents[3]
CONFIG = """\
model: {path: somewhere}
trainer: {total_steps: 5, batch_size: 8}
sync: {style: fixed, interval: 1, offset: 1}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def tandem(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["tandem", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", ["up", "demo", "check", "status", "audit"])
def test_every_commands_help_has_examples(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    assert "For example:" in result.output
    assert f"tandem {command} " in result.output


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{__version__}\n")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['tandem', '--help']\nfrom common.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print([name for name in ('torch', 'transformers', 'grpc', 'pydantic', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_no_command_imports_torch_nor_waits_for_matplotlib_before_it_starts() -> None:
    code = (
        "import sys, common.cli.up, common.cli.demonstration, common.cli.service_status, common.cli.check\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[]\n"


def test_check_prints_the_regime_and_a_configuration_that_can_be_run(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem(monkeypatch, "check", config, "--set", "trainer.total_steps=7") == 0
    text = capsys.readouterr().out
    assert text.startswith("# fixed: the explorer makes 2 explore steps")
    assert yaml.safe_load(text)["trainer"]["total_steps"] == 7
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load_config(again, environ={}) == load_config(config, ["trainer.total_steps=7"], environ={})


def test_check_describes_every_stage(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = "stages=[{name: warm, buffer: {source: file, path: x.jsonl}, algorithm: {name: sft}}, {name: cold}]"
    assert tandem(monkeypatch, "check", config, "--set", stages) == 0
    text = capsys.readouterr().out
    assert "# warm: no sync: the trainer reads x.jsonl" in text
    assert "# cold: fixed: " in text


def test_an_unknown_key_is_one_line_with_the_nearest_known_one(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("batch_size", "batchsize"))
    assert tandem(monkeypatch, "check", config) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "tandem: unknown key `trainer.batchsize`; did you mean `trainer.batch_size`?\n"


@pytest.mark.parametrize("command", ["check", "up"])
def test_a_configuration_that_would_wait_for_ever_is_refused_before_anything_starts(
    command: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hang = ["--set", "sync.offset=0", "--set", "explorer.batch_size=4"]
    assert tandem(monkeypatch, command, config, *hang) == 2
    assert "wait for each other for ever" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_missing_file_is_a_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tandem(monkeypatch, "up", "nowhere.yaml") == 2
    assert capsys.readouterr().err == "tandem: configuration nowhere.yaml: does not exist\n"
