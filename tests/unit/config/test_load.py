from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from common.config.load import load_config, to_yaml
from common.config.root import TandemConfig
from common.errors import ConfigError
from common.sync.policy import Style

MODEL = "model: {path: some/model}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def refusal(path: Path | None, *overrides: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, environ or {})
    return caught.value.message


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL + "trainer: {batch_size: 2, total_steps: 2, preview: 2}")
    environ = {"TANDEM__TRAINER__TOTAL_STEPS": "3", "TANDEM__TRAINER__PREVIEW": "3", "TANDEM_CONFIG": "ignored"}
    config = load_config(path, ["trainer.preview=4"], environ)
    assert (config.trainer.batch_size, config.trainer.total_steps, config.trainer.preview) == (2, 3, 4)


def test_values_of_overrides_are_yaml(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, MODEL),
        [
            "algorithm.optimizer.lr=1e-5",
            "explorer.sampling.stop=[a, 'b,c']",
            "taskset.options={path: x.jsonl, skip: 3}",
            "taskset.options.more.deep=true",
            "sync.style=fully_async",
            "taskset.epochs=null",
            "checkpoint.root=/data/checkpoints",
        ],
        {},
    )
    assert config.algorithm.optimizer.lr == 1e-5
    assert config.explorer.sampling.stop == ("a", "b,c")
    assert config.taskset.options == {"path": "x.jsonl", "skip": 3, "more": {"deep": True}}
    assert config.sync.style is Style.FULLY_ASYNC
    assert config.taskset.epochs is None
    assert config.checkpoint.root == Path("/data/checkpoints")


def test_text_that_looks_like_a_number_stays_text_where_the_key_is_text(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, MODEL), ["run.name=007", "model.path=1e5", "explorer.id='12'"], {})
    assert (config.run.name, config.model.path, config.explorer.id) == ("007", "1e5", "12")


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = MODEL + "taskset: {options: {a: 1e-6, b: no, c: 010, d: 0o10, e: 0x1F, f: 1:30, g: 2026-01-01, h: .5, i: ~}}"
    options = load_config(written(tmp_path, text), (), {}).taskset.options
    assert options == {
        "a": 1e-6, "b": "no", "c": 10, "d": 8, "e": 31, "f": "1:30", "g": "2026-01-01", "h": 0.5, "i": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("trainer.batch_sise", "`trainer.batch_size`"),
        ("trainr.batch_size", "`trainer`"),
        ("algorithm.optimizer.learning_rate", "`algorithm.optimizer.lr`"),
        ("monitor.colour", "`monitor.sinks`, `monitor.log_level`"),
        ("trainer.lr", "`algorithm.optimizer.lr`"),
        ("batch_size", "`trainer.batch_size` or `explorer.batch_size`"),
        ("sync.max_stalenes", "`sync.max_staleness`"),
        ("explorer.sampling.temprature", "`explorer.sampling.temperature`"),
        ("explorer.evaluation.taskset.rewards", "`explorer.evaluation.taskset.reward`"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(tmp_path: Path, key: str, meant: str) -> None:
    message = refusal(written(tmp_path, MODEL), f"{key}=1")
    assert message.startswith("unknown key `")
    assert meant in message


def test_an_unknown_key_in_the_file_reads_exactly_so(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, MODEL + "trainer: {batch_sise: 4}"))
    assert message == "unknown key `trainer.batch_sise`; did you mean `trainer.batch_size`?"


def test_an_unknown_key_in_a_list_names_the_key_of_its_items(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, MODEL + "explorers: [{address: 'a:1', adress: 'b:2'}]"))
    assert message == "unknown key `explorers.0.adress`; did you mean `explorers.address`?"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("trainer.batch_size=0", ("`trainer.batch_size`", "0", "greater than or equal to 1")),
        ("trainer.batch_size=many", ("`trainer.batch_size`", "'many'", "integer")),
        ("trainer.batch_size=true", ("`trainer.batch_size`", "True", "number, not a boolean")),
        ("algorithm.optimizer.lr=.nan", ("`algorithm.optimizer.lr`", "nan", "finite")),
        ("algorithm.aggregation=sum", ("`algorithm.aggregation`", "'sum'", "'token_mean', 'sequence_mean' or 'sequence_sum'")),
        ("sync.style=fixd", ("`sync.style`", "'fixd'", "'fixed', 'trainer_driven', 'explorer_driven' or 'fully_async'")),
        ("run.name=../x", ("`run.name`", "'../x'", "[A-Za-z0-9]")),
        ("trainer.address=nowhere", ("`trainer.address`", "'nowhere'", "host:port")),
        ("trainer.address='x:70000'", ("`trainer.address`", "65535")),
        ("explorer.trainer='x:0'", ("`explorer.trainer`", "port 0 cannot be dialled")),
        ("trainer=5", ("`trainer`", "5", "should hold keys")),
        ("model.architecture={model_type: llama}", ("`model`", "exactly one of `path` and `architecture`")),
        ("buffer.source=file", ("`buffer`", "`path`")),
        ("explorer.group_size=9000", ("`explorer.group_size` 9000", "`limits.batch_experiences` 8192")),
        ("limits.message_bytes=1048576", ("`sync.chunk_bytes` 2097152", "`limits.message_bytes` 1048576")),
    ],
)  # fmt: skip
def test_a_refusal_names_the_key_the_value_and_what_is_allowed(
    tmp_path: Path, override: str, parts: tuple[str, ...]
) -> None:
    message = refusal(written(tmp_path, MODEL), override)
    for part in parts:
        assert part in message


def test_a_refusal_says_where_the_value_came_from(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL)
    assert "(from --set trainer.batch_size=0)" in refusal(path, "trainer.batch_size=0")
    environ = {"TANDEM__TRAINER__BATCH_SIZE": "0"}
    assert "(from the environment variable TANDEM__TRAINER__BATCH_SIZE)" in refusal(path, environ=environ)


def test_every_mistake_gets_a_line(tmp_path: Path) -> None:
    lines = refusal(written(tmp_path, "trainer: {batch_size: 0, x: 1}")).splitlines()
    assert len(lines) == 3
    assert "`model` is missing" in lines


@pytest.mark.parametrize(
    ("override", "part"),
    [("trainer.batch_size", "section.key=value"), ("=4", "no key"), ("trainer..x=4", "no key"), ("run.name.x=1", "holds no keys")],
)  # fmt: skip
def test_a_malformed_override_is_refused(tmp_path: Path, override: str, part: str) -> None:
    assert part in refusal(written(tmp_path, MODEL + "run: {name: a}"), override)


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines)


def merge_bomb() -> str:
    lines = ["m0: &m0 {x: 1}"]
    lines += [f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("trainer: {batch_size: 1}\ntrainer: {batch_size: 2}\n", "'trainer' is given twice (line 2)"),
        ("trainer:\n  batch_size: 1\n  batch_size: 2\n", "'batch_size' is given twice (line 3)"),
        (bomb(), "aliases"),
        (merge_bomb(), "aliases"),
        ("a: &a [*a]", "an alias refers to what contains it"),
        ("[" * 50_000, "nested deeper than 64"),
        ("{a: " * 50_000, "nested deeper than 64"),
        ("- " * 50_000, "nested deeper than 64"),
        ("x" * (1 << 20) + "x", "longer than 1048576 bytes"),
        ("1: x", "key '1' (line 1) is not a string"),
        ("model: !!python/object/apply:os.system [true]", "not valid YAML"),
        ("model: {path: x}\n---\nmodel: {path: y}", "not valid YAML"),
        ("model: [1", "not valid YAML"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("- a\n- b", "must hold sections"),
        ("just text", "must hold sections"),
        ("a: \x00", "not valid YAML"),
    ],
    ids=range(17),
)
def test_a_hostile_or_broken_file_is_refused(tmp_path: Path, text: str, part: str) -> None:
    assert part in refusal(written(tmp_path, text))


def test_an_alias_that_is_no_bomb_works(tmp_path: Path) -> None:
    text = MODEL + "taskset: &t {name: jsonl, epochs: 3}\nexplorer: {evaluation: {taskset: {<<: *t, epochs: 1}}}"
    config = load_config(written(tmp_path, text), (), {})
    assert config.explorer.evaluation.taskset is not None
    assert (config.taskset.epochs, config.explorer.evaluation.taskset.epochs) == (3, 1)


def test_what_is_no_readable_text_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.yaml")
    assert "no plain file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "no plain file" in refusal(tmp_path / "pipe")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9")
    assert "not UTF-8" in refusal(tmp_path / "latin.yaml")


def test_sections_that_are_empty_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, MODEL + "trainer:\n  # batch_size: 4\n"), (), {})
    assert config.trainer.batch_size == TandemConfig.model_validate({"model": {"path": "x"}}).trainer.batch_size


def test_the_effective_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    text = (
        MODEL
        + "run: {name: '1e5', root: /data}\nsync: {style: fully_async}\nexplorer: {sampling: {stop: ['no', '1', '']}}"
    )
    config = load_config(written(tmp_path, text), ["algorithm.optimizer.lr=3e-7", "explorers=[{address: 'a:1'}]"], {})
    effective = written(tmp_path, to_yaml(config))
    assert load_config(effective, (), {}) == config


def test_the_effective_configuration_is_plain_yaml_in_the_order_of_the_sections(tmp_path: Path) -> None:
    plain = yaml.safe_load(to_yaml(load_config(written(tmp_path, MODEL + "run: {root: /data}"), (), {})))
    assert list(plain)[:4] == ["run", "model", "algorithm", "sync"]
    assert plain["run"]["root"] == "/data"
    assert plain["sync"]["style"] == "fixed"
    assert plain["monitor"]["sinks"] == ["jsonl", "tensorboard"]


def test_an_override_that_every_stage_replaces_is_refused(tmp_path: Path) -> None:
    stages = "stages: [{name: a, trainer: {total_steps: 1}}, {name: b, trainer: {total_steps: 2}}]"
    message = refusal(written(tmp_path, MODEL + stages), "trainer.total_steps=5")
    assert "no effect" in message
    assert "`stages.a.trainer.total_steps` or `stages.b.trainer.total_steps`" in message


def test_a_stage_is_addressed_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL + "stages: [{name: a}, {name: b, trainer: {total_steps: 2}}]")
    config = load_config(path, ["stages.b.trainer.total_steps=7"], {"TANDEM__STAGES__A__TRAINER__PREVIEW": "1"})
    assert config.stages == ({"name": "a", "trainer": {"preview": 1}}, {"name": "b", "trainer": {"total_steps": 7}})
    assert "stages are: a, b" in refusal(path, "stages.c.trainer.total_steps=7")
