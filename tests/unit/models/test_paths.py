"""Where a model's files are looked for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.models.paths import brief, is_local, resolve_source


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `models_test_package` with a folder `inner/weights` and a link that leads out of it."""
    root = tmp_path / "site" / "models_test_package"
    (root / "inner" / "weights").mkdir(parents=True)
    (root / "__init__.py").touch()
    (root / "file").touch()
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield root
    monkeypatch.delitem(sys.modules, "models_test_package", raising=False)


def test_a_local_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    source = resolve_source("model.path", "model")
    assert source == str((tmp_path / "model").resolve())
    assert is_local(source)


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_a_hub_id_stays_as_it_is(name: str) -> None:
    assert resolve_source("model.path", name) == name
    assert not is_local(name)


@pytest.mark.parametrize("value", ["/nowhere/model", "./model", "a/b/c", "../up", "", "a b"])
def test_what_is_neither_folder_nor_hub_id_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\.path: there is no folder"):
        resolve_source("model.path", value)


def test_a_folder_inside_a_package_is_found(package: Path) -> None:
    found = resolve_source("model.path", "package:models_test_package/inner/weights")
    assert found == str((package / "inner" / "weights").resolve())


@pytest.mark.parametrize(
    "inside", ["../outside", "inner/../../outside", "/etc", "inner//weights", ".", "", "inner\\weights", "~"]
)
def test_a_package_folder_must_be_spelled_plainly(package: Path, inside: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form package:NAME/FOLDER"):
        resolve_source("model.path", f"package:models_test_package/{inside}")


def test_a_link_out_of_the_package_is_refused(package: Path) -> None:
    with pytest.raises(ConfigError, match="leads out of package"):
        resolve_source("model.path", "package:models_test_package/link")


@pytest.mark.parametrize("inside", ["nothing", "file"])
def test_only_a_folder_counts(package: Path, inside: str) -> None:
    with pytest.raises(ConfigError, match="has no folder"):
        resolve_source("model.path", f"package:models_test_package/{inside}")


def test_an_unknown_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.tokenizer: .*no_such_package"):
        resolve_source("model.tokenizer", "package:no_such_package/model")


def test_long_errors_are_cut_to_one_line() -> None:
    text = brief(ValueError("first\nsecond " + "x" * 5000))
    assert text.startswith("first second x")
    assert len(text) < 500
