"""`tandem simulate` as its users call it: durations given or measured, for people and for machines."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.cli.app import app
from common.cli.measured_run import read_measured
from common.cli.simulate import log_normal
from common.errors import MalformedData
from common.sync.happening import Group

CONFIG = "model: {path: x}\ntrainer: {batch_size: 2, total_steps: 10}\nexplorer: {batch_size: 2}\n"
GROUP = Group(0, 0, 1, (1, 0), (1, 0), 0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def simulated(config: Path, *words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["simulate", str(config), "--json", *words])
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def log(folder: Path, name: str, records: list[dict[str, float]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"step": number, "time": 0.0, "source": name, **record}) for number, record in enumerate(records)
    ]
    (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"step": 9, "ti')


def test_on_policy_takes_turns_and_moves_so_many_bytes(config: Path) -> None:
    # Each of 10 steps: a push of 0.5 s, a rollout of 2 s, a train step of 1 s; and 0.001 s for each of the messages between.
    found = simulated(
        config, "--rollout-seconds", "2", "--train-seconds", "1", "--push-seconds", "0.5",
        "--group-bytes", "1000", "--version-bytes", "1e6",
    )  # fmt: skip
    assert (found["steps"], found["staleness"], found["deadlock"]) == (10, {"0": 20}, None)
    assert found["seconds"] == pytest.approx(35, rel=0.01)
    assert found["trainer_idle"] == pytest.approx(25 / 35, rel=0.01)
    assert found["explorer_idle"] == pytest.approx(15 / 35, rel=0.01)
    assert found["experience_bytes_a_day"] == pytest.approx(20 * 1000 / 35 * 86400, rel=0.01)
    # Versions 0 to 9, and the last one.
    assert found["weight_bytes_a_day"] == pytest.approx(11 * 1e6 / 35 * 86400, rel=0.01)


def test_what_a_run_has_measured_is_simulated(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "pair" / "main" / "metrics"
    step = {"time/train_step": 1.0, "time/sync_receive": 0.4, "time/sync_apply": 0.1, "sync/sent_bytes": 1e6}
    log(folder, "trainer", [{"time/train_step": 99.0}, step, step])
    explored = {
        "explore/groups": 2.0,
        "time/group_mean": 1.5,
        "time/group_max": 2.0,
        "explore/bytes": 2000.0,
        "explore/tokens": 60.0,
    }
    log(folder, "explorer-0", [{**explored, "time/group_max": 50.0}, explored, explored, {"eval/reward_mean": 0.5}])
    found = simulated(config, "--from", str(tmp_path / "runs" / "pair"))
    # Of two groups the longest is 2 s and the other 1 s; both are the longest, drawn by chance, in a quarter of the steps.
    assert 25 < float(str(found["seconds"])) < 35.2
    assert found["steps"] == 10
    seconds = float(str(found["seconds"]))
    assert found["experience_bytes_a_day"] == pytest.approx(20 * 1000 / seconds * 86400)
    assert found["weight_bytes_a_day"] == pytest.approx(11 * 1e6 / seconds * 86400)
    assert found["tokens_per_second"] == pytest.approx(20 * 30 / seconds)
    assert found["steps_per_second"] == pytest.approx(10 / seconds)


def test_a_run_that_has_measured_nothing_is_refused(tmp_path: Path, config: Path) -> None:
    with pytest.raises(MalformedData, match="0 trainer steps"):
        read_measured(tmp_path, "main")
    result = CliRunner().invoke(app, ["simulate", str(config), "--from", str(tmp_path)])
    assert result.exit_code != 0


def test_a_deadlock_is_exit_code_1_and_named(config: Path) -> None:
    words = ["simulate", str(config), "--json", "--set", "trainer.batch_size=3", "--set", "buffer.max_groups=2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "waits for" in json.loads(result.output)["deadlock"]


def test_a_spread_keeps_the_mean() -> None:
    draw = log_normal(2.0, 1.0)
    seconds = [draw(GROUP) for _ in range(40_000)]
    mean = sum(seconds) / len(seconds)
    deviation = (sum((one - mean) ** 2 for one in seconds) / len(seconds)) ** 0.5
    assert mean == pytest.approx(2.0, rel=0.03)
    assert deviation == pytest.approx(2.0, rel=0.1)
