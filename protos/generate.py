"""Makes the Python code and the type stubs of the protos: `python -m protos.generate [--check]`.

The generator is pinned to an older release than the runtime: output of grpcio-tools 1.71.2 imports under protobuf 5.29
to 7, whereas newer output refuses older runtimes, and engines such as vLLM pin theirs. It wants a protobuf of its own,
so it runs in a virtual environment of its own, made on first use under `.cache/`.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATOR_ENVIRONMENT = ROOT / ".cache" / "protoc-1.71.2"
GENERATOR_PACKAGES = ("grpcio-tools==1.71.2", "mypy-protobuf==3.6.0", "setuptools<80")


def proto_files() -> list[str]:
    """The protos, as paths from the repository's root."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))


def generator_python() -> Path:
    """The interpreter of the generator's environment, which is made if it is missing."""
    python = GENERATOR_ENVIRONMENT / "bin" / "python"
    marker = GENERATOR_ENVIRONMENT / "complete"
    if not marker.exists():
        venv.create(GENERATOR_ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *GENERATOR_PACKAGES], check=True)
        marker.touch()
    return python


def generate(out: Path) -> None:
    """Writes the generated files under `out`, with the protos' folders."""
    python = generator_python()
    plugins = python.parent
    subprocess.run(
        [
            python, "-m", "grpc_tools.protoc", "-I", ".",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}", f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}", f"--mypy_grpc_out=quiet:{out}",
            *proto_files(),
        ],
        cwd=ROOT, check=True,
    )  # fmt: skip


def drifted(fresh: Path) -> list[str]:
    """The generated files that are not as committed, missing ones and left-over ones included."""
    made = {path.relative_to(fresh) for path in fresh.rglob("*_pb2*") if path.is_file()}
    kept = {path.relative_to(ROOT) for path in (ROOT / "protos").rglob("*_pb2*.py*") if path.suffix in {".py", ".pyi"}}
    different = {name for name in made & kept if not filecmp.cmp(fresh / name, ROOT / name, shallow=False)}
    return sorted(str(name) for name in different | (made ^ kept))


def main() -> int:
    """Generates in place; with --check, changes nothing and fails when the committed files differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with what is committed")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        names = drifted(Path(folder))
    for name in names:
        sys.stderr.write(f"not as generated: {name}; run `python -m protos.generate`\n")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
