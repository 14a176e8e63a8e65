"""Whatever two versions hold, a delta makes one of the other; whatever bytes come, nothing else is written."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import MalformedData
from common.weights.delta import apply, decode, encode, parse
from common.weights.delta_zstd import compress, decompress
from common.weights.manifest import Manifest
from tests.support.weights import lay_out, sample_tensors

FEW = settings(max_examples=60, deadline=None)
WORDS = 70_000
"""Of bf16: a full block and a part of one."""


def two_blocks() -> tuple[Manifest, np.ndarray]:
    manifest, data = lay_out({"w": torch.arange(WORDS, dtype=torch.int32).to(torch.bfloat16)})
    return manifest, data.numpy()


@FEW
@given(st.lists(st.tuples(st.integers(0, WORDS - 1), st.integers(0, 0xFFFF)), max_size=60))
def test_any_change_of_bits_arrives_by_both_encodings(changes: list[tuple[int, int]]) -> None:
    manifest, base = two_blocks()
    new = base.copy()
    for where, value in changes:
        new.view(np.uint16)[where] = value
    encoded = encode(base, new, manifest)
    assert encoded is not None
    compressed = compress(encoded, manifest, base)

    plain, packed = base.copy(), base.copy()
    decode(encoded, manifest, plain)
    apply(decompress(compressed, manifest, packed), packed)
    assert plain.tobytes() == new.tobytes()
    assert packed.tobytes() == new.tobytes()


@FEW
@given(st.data())
def test_any_bytes_of_any_dtypes_arrive(data: st.DataObject) -> None:
    manifest, base = lay_out(sample_tensors())
    new = base.numpy().copy()
    for where in data.draw(st.lists(st.integers(0, new.size - 1), max_size=20)):
        new[where] = data.draw(st.integers(0, 255))
    encoded = encode(base.numpy(), new, manifest)
    if encoded is None:
        return
    decoded = base.numpy().copy()
    decode(encoded, manifest, decoded)
    assert decoded.tobytes() == new.tobytes()


@FEW
@given(st.binary(max_size=80), st.data())
def test_arbitrary_bytes_are_refused_or_are_exactly_what_encode_writes(raw: bytes, data: st.DataObject) -> None:
    manifest, base = two_blocks()
    if data.draw(st.booleans()):
        counts = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=2))
        raw = np.array(counts, "<u4").tobytes() + raw[: 4 * sum(counts)].ljust(4 * sum(counts), b"\1")
    encoded = np.frombuffer(raw, dtype=np.uint8)
    changed = base.copy()
    try:
        parts = parse(encoded, manifest)
    except MalformedData:
        return
    apply(parts, changed)
    assert int((changed.view(np.uint16) != base.view(np.uint16)).sum()) <= sum(part.offsets.size for part in parts)
    again = base.copy()
    decode(encoded, manifest, again)
    assert again.tobytes() == changed.tobytes()


@FEW
@given(st.integers(0, 400), st.integers(0, 7), st.binary(max_size=4))
def test_a_damaged_compressed_delta_is_refused_or_harmless(where: int, bit: int, tail: bytes) -> None:
    manifest, base = two_blocks()
    new = base.copy()
    new.view(np.uint16)[::1000] ^= 1
    encoded = encode(base, new, manifest)
    assert encoded is not None
    damaged = bytearray(compress(encoded, manifest, base).tobytes() + tail)
    damaged[where % len(damaged)] ^= 1 << bit
    try:
        parts = decompress(np.frombuffer(damaged, dtype=np.uint8), manifest, base)
    except MalformedData:
        return
    apply(parts, base.copy())
