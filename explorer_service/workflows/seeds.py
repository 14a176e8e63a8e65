"""Seeds of rollouts."""

from __future__ import annotations

import hashlib


def derive_seed(*key: int | str) -> int:
    """A seed below 2^63 that depends on the key alone; neighbouring keys give unrelated seeds."""
    # repr tells 1 from "1", and a tuple's repr keeps the parts apart.
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
