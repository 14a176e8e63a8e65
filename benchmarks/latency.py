"""How long the pair takes to answer, and to begin with a push once a step is done.

`python benchmarks/latency.py [--quick]`; what each figure means: docs/performance.md.
"""

from __future__ import annotations

import argparse

from support import child, report, result_of, said


def main() -> None:
    """Prints the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 seconds, with wider error bars")
    quick = parser.parse_args().quick
    with child("support_pair.py", "serve") as pair:
        at = said(pair)
        rounds = 400 if quick else 3000
        unary = result_of(
            "support_pair.py", "call", rounds, at["status_bytes"], at["trainer"], at["explorer"], at["echo"]
        )
    push = result_of("support_pair.py", "publish", 20 if quick else 200)
    rows = [("bare grpc.aio echo, p50", f"{unary['echo_us']:.0f} us", f"of {at['status_bytes']} bytes")]
    for service in ("trainer", "explorer"):
        times = unary[f"{service}_us"]
        rows.append(
            (f"GetStatus of the {service}, p50", f"{times:.0f} us", f"{times / unary['echo_us']:.2f} x the echo")
        )
    for name, what in (
        ("export", "step's end to exported weights"),
        ("first_push_byte", "step's end to the first push byte, in gRPC's hands"),
        ("arrival", "step's end to the push's first message at the explorer"),
        ("first_chunk", "step's end to the first weights at the explorer"),
    ):
        rows.append((f"{what}, p50", f"{push[f'{name}_p50_ms']:.2f} ms", f"longest {push[f'{name}_max_ms']:.2f} ms"))
    report(
        f"Latency; {push['steps']} steps that publish",
        rows,
        {
            "status_over_echo": max(unary["trainer_us"], unary["explorer_us"]) / unary["echo_us"],
            "echo_ms": unary["echo_us"] / 1000,
            "publish_to_first_byte_ms": push["first_push_byte_p50_ms"],
            "publish_to_first_byte_ms_max": push["first_push_byte_max_ms"],
            "publish_to_arrival_ms": push["arrival_p50_ms"],
        },
    )


if __name__ == "__main__":
    main()
