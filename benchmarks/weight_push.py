"""A full push of weights, from the offer to the moment it is applied: `python benchmarks/weight_push.py [--quick]`.

Every sender and receiver is a fresh process of its own. All kinds take turns, push by push, so that the machine's load
meets all of them; a ratio is the median of the ratios of neighbouring pushes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from contextlib import ExitStack

from support import child, report, said

KINDS = ("tandem", "tcp", "tcp_bare", "naive")
FANNED = ("tandem", "tcp")
FAN_OUT = 4


class Pair:
    """One sender and its receivers."""

    def __init__(self, stack: ExitStack, kind: str, megabytes: int, receivers: int = 1) -> None:
        self.receivers = [
            stack.enter_context(child("support_push_receiver.py", kind, megabytes)) for _ in range(receivers)
        ]
        self._stack = stack
        self._arguments = (kind, megabytes)

    def connect(self) -> None:
        """Starts the sender, when all receivers have been started: they take a while."""
        addresses = [said(receiver)["address"] for receiver in self.receivers]
        self.sender = self._stack.enter_context(child("support_push_sender.py", *self._arguments, *addresses))

    def push(self, receivers: int = 1) -> float:
        """Seconds of one push to so many receivers at once."""
        self.sender.stdin.write(f"{receivers}\n")
        self.sender.stdin.flush()
        return float(said(self.sender)["seconds"])

    def extra(self) -> tuple[int, int]:
        """Bytes of memory that the sender and the (first) receiver took beside their weights; ends both."""
        return _last(self.sender), _last(self.receivers[0])


def _last(process: subprocess.Popen[str]) -> int:
    process.stdin.close()
    return int(said(process)["extra"])


def rounds(pairs: dict[str, Pair], count: int, receivers: int = 1) -> dict[str, list[float]]:
    """Seconds of each kind, round by round, after one push each that maps the memory."""
    for pair in pairs.values():
        pair.push(receivers)
    seconds: dict[str, list[float]] = {kind: [] for kind in pairs}
    for _ in range(count):
        for kind, pair in pairs.items():
            seconds[kind].append(pair.push(receivers))
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(above / below for above, below in zip(numerator, denominator, strict=True))


def main() -> None:
    """Measures, and reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 MB, fewer rounds")
    quick = parser.parse_args().quick
    megabytes, count = (64, 5) if quick else (512, 9)
    model = megabytes << 20
    with ExitStack() as stack:
        pairs = {kind: Pair(stack, kind, megabytes, FAN_OUT if kind in FANNED else 1) for kind in KINDS}
        for pair in pairs.values():
            pair.connect()
        seconds = rounds(pairs, count)
        fanned = rounds({kind: pairs[kind] for kind in FANNED}, max(3, count // 2), FAN_OUT)
        extras = {kind: pair.extra() for kind, pair in pairs.items()}
    figures = {
        "push_over_tcp": ratio(seconds["tcp"], seconds["tandem"]),
        "push_over_bare_tcp": ratio(seconds["tcp_bare"], seconds["tandem"]),
        "push_over_naive": ratio(seconds["naive"], seconds["tandem"]),
        "peak_extra_bytes_over_model": extras["tandem"][1] / model,
        "sender_extra_bytes_over_model": extras["tandem"][0] / model,
        "fanout4_over_ideal": ratio(fanned["tandem"], fanned["tcp"]),
        "push_seconds": statistics.median(seconds["tandem"]),
    }
    titles = {
        "tandem": "Tandem: PushWeights, xxh3, load",
        "tcp": "TCP socket, xxh3, load",
        "tcp_bare": "TCP socket alone",
        "naive": "torch.save, 2 MB protos, torch.load",
    }
    rows = []
    for kind, title in titles.items():
        middle = statistics.median(seconds[kind])
        memory = f"extra MB: sender {extras[kind][0] >> 20}, receiver {extras[kind][1] >> 20}"
        rows.append((title, f"{1000 * middle:.0f} ms, {model / middle / 1e9:.2f} GB/s", memory))
    for kind, values in fanned.items():
        rows.append((f"to {FAN_OUT} at once: {titles[kind]}", f"{1000 * statistics.median(values):.0f} ms", ""))
    report(f"Push of {megabytes} MiB of bf16 in 200 tensors, offer to applied", rows, figures)


if __name__ == "__main__":
    main()
