"""Every decoder, given damaged input: a typed error or a value, and nothing else. `make fuzz` gives them a million."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import TandemError
from tests.fuzz.fuzz_decoders import Decoder, damage, targets

Targets = dict[str, tuple[list[bytes], Decoder, float]]
NAMES = [
    "experience columns",
    "experience batch, checksum made right",
    "explorer's stream",
    "push",
    "weight manifest",
    "delta",
    "compressed delta",
    "safetensors header",
    "checkpoint manifest",
    "checkpoint manifest, hash made right",
    "ledger line",
    "ledger line, hash made right",
    "YAML",
    "spool file",
]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    return targets(tmp_path_factory.mktemp("samples"))


def test_all_are_named(known: Targets) -> None:
    assert sorted(known) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=100)
@given(st.randoms(use_true_random=False), st.none() | st.binary(max_size=200))
def test_damaged_and_random_bytes_raise_nothing_but_typed_errors(
    name: str, known: Targets, pick: random.Random, raw: bytes | None
) -> None:
    samples, decoder, _ = known[name]
    with contextlib.suppress(TandemError):
        decoder(damage(pick, pick.choice(samples), samples) if raw is None else raw)
