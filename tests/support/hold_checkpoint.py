"""A reader in a process of its own: `python hold_checkpoint.py FOLDER` holds it until its standard input ends."""

from __future__ import annotations

import sys
from pathlib import Path

from common.checkpoint.leases import hold


def main() -> None:
    """Says `held` once it is."""
    with hold(Path(sys.argv[1])):
        sys.stdout.write("held\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
