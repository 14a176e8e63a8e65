"""What a process must settle before torch and grpc are imported: call `prepare_process` first in each `__main__`."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Protocol

from common.parent import end_with_parent

_ENVIRONMENT = {
    # Two torch processes whose idle OpenMP threads spin made 20 tokens/s each on 2 cores, instead of 420.
    "OMP_WAIT_POLICY": "passive",
    # The tokenizers library starts a thread pool that deadlocks after a fork and competes with torch.
    "TOKENIZERS_PARALLELISM": "false",
    # A run tells nobody about itself, and progress bars tear JSON logs.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

# From glibc's malloc.h. Setting one of the two turns glibc's own tuning off, so both are set.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD = 32 << 20
"""Bytes; the most that glibc takes. Above it malloc maps and unmaps memory for every gRPC message: 1.5 GB/s, not 2.7."""
_TRIM_THRESHOLD = 64 << 20
"""Bytes of free memory at the heap's top that are kept instead of given back and faulted in again."""

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""cgroup v2: `quota period` in microseconds, or `max period`."""


class ThreadSettings(Protocol):
    """A `DeviceConfig`, as far as threads go."""

    @property
    def threads(self) -> int | None:
        """Threads of torch on the CPU; None: the fair share."""


def prepare_process() -> None:
    """Sets the environment and the allocator. What the user has set is kept.

    Raises ConfigError when torch was imported before: its OpenMP threads have read their policy then, and spin.
    """
    if "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        # Imported here: common.errors imports grpc, which must come after the allocator is tuned.
        from common.errors import ConfigError  # noqa: PLC0415 - see above

        raise ConfigError(
            "torch was imported before OMP_WAIT_POLICY was set, so its idle threads will spin and starve the other "
            "process; set OMP_WAIT_POLICY=passive in the environment, or call prepare_process() first"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    tune_allocator()
    end_with_parent()  # starts a thread, so it comes after the allocator is tuned


def tune_allocator() -> bool:
    """Stops glibc from mapping memory for each large message; False where the C library is another one."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    set_mmap = mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
    set_trim = mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
    return bool(set_mmap and set_trim)


def available_cores() -> int:
    """Cores that this process may use: its affinity, capped by its container's quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota(_CPU_QUOTA) or cores))


def configure_threads(device: ThreadSettings, processes_on_host: int) -> int:
    """Sets torch's threads on the CPU: as configured, else a fair share of the cores. Returns their number."""
    import torch  # noqa: PLC0415 - this module must be importable before torch is

    threads = device.threads or max(1, available_cores() // max(1, processes_on_host))
    torch.set_num_threads(threads)
    return threads


def _quota(path: Path) -> int | None:
    """Whole cores of a cgroup v2 quota; None without one."""
    try:
        quota, period = path.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or `max`
        return None
