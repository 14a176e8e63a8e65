"""Experiences from the explorer's spool to the trainer's packed batch: the codec alone, and the stream between processes.

`python benchmarks/experience_stream.py [--quick]`; what each figure means: docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from support import child, report, result_of, said

DELAY_MS = 20
LONG, SHORT = (200, 1000), (24, 72)
"""Tokens of prompt and response: 9.8 KB and 0.8 KB an experience."""
WARM = 0.4
"""The share of each stream that is not counted: gRPC's windows still grow."""
WAYS = ("direct", "proxy", "delayed")


def streams(batches: int, rounds: int, size: tuple[int, int], *, proxied: bool) -> dict[str, dict[str, float]]:
    """Medians of every way to read the same spool, in turn: straight, by a proxy, and by one that adds a delay."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        explorer = said(stack.enter_context(child("support_stream.py", "explorer", folder, batches, *size)))
        addresses = [explorer["address"]]
        for delay in (0, DELAY_MS) if proxied else ():
            proxy = stack.enter_context(child("support_proxy.py", explorer["address"], delay))
            addresses.append(said(proxy)["address"])
        trainer = stack.enter_context(child("support_stream.py", "trainer", rounds + 1, WARM, *addresses))
        lines = [said(trainer) for _ in range((rounds + 1) * len(addresses))][len(addresses) :]  # the first round warms
    results = {
        way: {name: statistics.median(line[name] for line in lines if line["place"] == place) for name in lines[0]}
        for place, way in enumerate(WAYS[: len(addresses)])
    }
    results["spool"] = {
        "experiences_per_s": explorer["experiences"] / explorer["fill_seconds"],
        "bytes_per_s": explorer["bytes"] / explorer["fill_seconds"],
    }
    return results


def codec_rows(label: str, codec: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Of one size."""
    rows = [
        (
            f"columnar, {label}",
            f"{codec['columnar_per_s']:,.0f} experiences a CPU second",
            f"encode {codec['columnar_encode_us']:.1f} us, decode to TrainBatch {codec['columnar_decode_us']:.1f} us",
        )
    ]
    for way in ("repeated", "repeated_usual", "pickle"):
        factor = codec["columnar_per_s"] / codec[f"{way}_per_s"]
        rows.append((f"  {way}", f"{codec[f'{way}_per_s']:,.0f}", f"columnar is {factor:.1f} x as fast"))
    rows.append(
        (
            "  bytes on the wire / raw tensors",
            f"{codec['columnar_bytes_over_raw']:.3f}",
            f"repeated {codec['repeated_bytes_over_raw']:.2f}, pickle {codec['pickle_bytes_over_raw']:.2f}",
        )
    )
    return rows


def stream_rows(label: str, results: Mapping[str, Mapping[str, float]], tokens: int) -> list[tuple[str, str, str]]:
    """Of one size."""
    rows = [
        (
            f"stream {way}, {label}",
            f"{results[way]['tokens_per_s'] / 1e6:.1f} M tokens/s",
            f"{results[way]['tokens_per_s'] / tokens:,.0f}/s; trainer {results[way]['tokens_per_cpu_s'] / 1e6:.1f} M a CPU s",
        )
        for way in WAYS
        if way in results
    ]
    spool = results["spool"]
    rows.append(
        (
            f"spooling, {label}",
            f"{spool['experiences_per_s']:,.0f} experiences/s",
            f"{spool['bytes_per_s'] / 1e6:.0f} MB/s, made, encoded and durable",
        )
    )
    return rows


def main() -> None:
    """Prints the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 seconds, with wider error bars")
    quick = parser.parse_args().quick
    codecs: dict[str, Any] = result_of("support_codecs.py", "--seconds", 0.15 if quick else 2.0)
    long = streams(150 if quick else 1000, 3 if quick else 7, LONG, proxied=True)
    short = streams(200, 3, SHORT, proxied=False) if not quick else {}
    rows = [
        *codec_rows("9.8 KB", codecs["long"]),
        *codec_rows("0.8 KB", codecs["short"]),
        *stream_rows("9.8 KB", long, sum(LONG)),
        *(stream_rows("0.8 KB", short, sum(SHORT)) if short else ()),
    ]
    direct, delayed = long["direct"]["tokens_per_s"], long["delayed"]["tokens_per_s"]
    codec = codecs["long"]
    report(
        f"Experiences; the delayed stream's bytes arrive {DELAY_MS} ms later in each direction",
        rows,
        {
            "exp_over_repeated": codec["columnar_per_s"] / codec["repeated_per_s"],
            "exp_over_repeated_usual": codec["columnar_per_s"] / codec["repeated_usual_per_s"],
            "exp_over_pickle": codec["columnar_per_s"] / codec["pickle_per_s"],
            "exp_bytes_over_raw": codec["columnar_bytes_over_raw"],
            "tokens_per_s_core": long["direct"]["tokens_per_cpu_s"],
            # Both by the proxy, whose own work takes a share of the cores that no cable would take.
            "delayed_over_loopback": delayed / long["proxy"]["tokens_per_s"],
            "delayed_over_direct": delayed / direct,
            "exp_per_s": direct / sum(LONG),
        },
    )


if __name__ == "__main__":
    main()
