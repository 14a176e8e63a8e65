"""What is installed is what is in the tree: the wheel, and `pip install .` from a clean clone.

The dependencies are gigabytes and are here already, so the environments made here see this one's by a path file, which,
unlike an activated site folder, does not bring an editable installation along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("protos", "common", "trainer_service", "explorer_service")
DEPENDENCIES = sysconfig.get_path("purelib")
PROGRAMS = ("tandem", "tandem-trainer", "tandem-explorer")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with our package in it, and an empty folder to use it from."""

    folder: Path
    empty: Path

    def run(self, program: str, *arguments: str) -> str:
        """Standard output of one of its programs, which must succeed, without any path of ours to help it."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return output_of([str(self.folder / "bin" / program), *arguments], cwd=self.empty, environment=environment)


def output_of(command: list[str], *, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, timeout=100, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def files_of_the_tree(*patterns: str) -> list[Path]:
    """What git keeps or would keep, as paths from the root."""
    names = output_of(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns])
    return [Path(name) for name in names.split("\0") if name and (ROOT / name).is_file()]


def install(what: Path, scratch: Path) -> Installed:
    """A new environment with `what` installed: a wheel, or a folder with a pyproject.toml."""
    installed = Installed(scratch / "environment", scratch / "empty")
    installed.empty.mkdir()
    venv.create(installed.folder, symlinks=True)
    python = installed.folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    # setuptools comes from here too, so that nothing is fetched; what else pip sees here does not count as installed.
    options = ["--no-deps", "--no-build-isolation", "--ignore-installed", "--no-compile"]
    output_of([*pip, *options, str(what)], cwd=scratch, environment={**os.environ, "PYTHONPATH": DEPENDENCIES})
    (site,) = installed.folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{DEPENDENCIES}\n", encoding="utf-8")
    return installed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, for setuptools leaves a build folder behind whose old modules would get into the next wheel."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in files_of_the_tree(*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    output_of([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree)])
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("from_wheel"))


def test_the_wheel_holds_every_file_of_our_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {str(name) for name in files_of_the_tree(*PACKAGES)}


def test_the_wheel_brings_its_licence_and_what_type_checkers_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(held)
    assert {"protos/tandem/v1/trainer.proto", "protos/tandem/v1/trainer_pb2.pyi"} <= set(held)


def test_the_installed_packages_are_those_of_the_wheel(from_wheel: Installed) -> None:
    code = f"import {', '.join(PACKAGES)}; print({', '.join(f'{package}.__file__' for package in PACKAGES)}, sep='\\n')"
    places = from_wheel.run("python", "-c", code).split()
    assert len(places) == len(PACKAGES)
    for place in places:
        assert Path(place).is_relative_to(from_wheel.folder)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_of_the_wheel_explains_itself(from_wheel: Installed, program: str) -> None:
    assert "Usage" in from_wheel.run(program, "--help")


def test_pip_installs_a_clean_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    output_of(["git", "clone", "--quiet", "--no-hardlinks", "--depth", "1", ROOT.as_uri(), str(clone)], cwd=tmp_path)
    installed = install(clone, tmp_path)
    assert "Usage" in installed.run("tandem", "--help")
