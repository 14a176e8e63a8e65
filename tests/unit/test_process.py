from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from common import process

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Device:
    threads: int | None


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in process._ENVIRONMENT}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_prepared_process_has_the_policy_before_torch_and_grpc_are_imported() -> None:
    code = (
        "import sys, os\nfrom common.process import prepare_process\nprepare_process()\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['TOKENIZERS_PARALLELISM'], 'torch' in sys.modules, 'grpc' in sys.modules)"
    )
    result = run(code)
    assert result.stdout.split() == ["passive", "false", "False", "False"], result.stderr


def test_what_the_user_has_set_is_kept() -> None:
    code = (
        "import os\nfrom common.process import prepare_process\nprepare_process()\nprint(os.environ['OMP_WAIT_POLICY'])"
    )
    assert run(code, OMP_WAIT_POLICY="active").stdout.split() == ["active"]


def test_torch_imported_too_early_is_refused_with_the_remedy() -> None:
    # A stand-in: what counts is that the module is there, and importing the real one takes seconds.
    code = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\nfrom common.process import prepare_process\n"
    result = run(code + "prepare_process()")
    assert result.returncode != 0
    assert "ConfigError" in result.stderr
    assert "OMP_WAIT_POLICY=passive" in result.stderr
    assert run(code + "prepare_process()", OMP_WAIT_POLICY="passive").returncode == 0


def test_large_blocks_come_from_the_heap_once_the_allocator_is_tuned() -> None:
    # glibc maps a block of 8 MiB on its own as long as its threshold is the default 128 KiB; mallinfo2 counts such blocks.
    code = """
import ctypes, sys
from common.process import tune_allocator
libc = ctypes.CDLL(None)
if not hasattr(libc, "mallinfo2"):
    print("other"); sys.exit()
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
def mapped():
    before = libc.mallinfo2().hblkhd
    libc.malloc(8 << 20)
    return libc.mallinfo2().hblkhd - before
first = mapped()
assert tune_allocator()
print(first >= 8 << 20, mapped())
"""
    result = run(code)
    assert result.stdout.split() in (["True", "0"], ["other"]), result.stderr


def test_another_c_library_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: object())
    assert process.tune_allocator() is False


@pytest.mark.parametrize(
    ("content", "cores"),
    [("max 100000\n", None), ("150000 100000\n", 1), ("400000 100000\n", 4), ("50000 100000\n", 1), ("nonsense", None)],
)
def test_a_containers_quota_counts_whole_cores(tmp_path: Path, content: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert process._quota(tmp_path / "cpu.max") == cores
    assert process._quota(tmp_path / "none") is None


def test_threads_are_as_configured_or_a_fair_share(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(process, "available_cores", lambda: 8)
    try:
        assert process.configure_threads(Device(3), 2) == 3
        assert torch.get_num_threads() == 3
        assert process.configure_threads(Device(None), 2) == 4
        assert process.configure_threads(Device(None), 100) == 1
        assert process.configure_threads(Device(None), 0) == 8
    finally:
        torch.set_num_threads(before)
