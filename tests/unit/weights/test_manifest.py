from dataclasses import replace

import pytest
import torch
import xxhash

from common.errors import LimitExceeded, MalformedData
from common.weights.manifest import (
    Manifest,
    TensorEntry,
    build_manifest,
    content_hash,
    layout_hash,
    tensor_views,
    validate_manifest,
)
from tests.support.weights import lay_out, same_bits, sample_tensors


def check(manifest: Manifest) -> None:
    validate_manifest(manifest, max_tensors=100, max_bytes=1 << 20)


def one_entry(**changes: object) -> Manifest:
    entry = replace(TensorEntry("w", "F32", (2, 3), 0, 24, bytes(16)), **changes)
    return Manifest((entry,), entry.length, content_hash((entry,)), layout_hash((entry,)))


def test_a_manifest_lists_the_tensors_by_name_with_the_hash_of_each() -> None:
    raw = torch.tensor([[1.0, -2.0]])
    manifest = build_manifest({"z": raw, "a": torch.tensor([1, 2, 3], dtype=torch.uint8)})

    assert manifest.tensors == (
        TensorEntry("a", "U8", (3,), 0, 3, xxhash.xxh3_128(b"\x01\x02\x03").digest()),
        TensorEntry("z", "F32", (1, 2), 3, 8, xxhash.xxh3_128(b"\x00\x00\x80\x3f\x00\x00\x00\xc0").digest()),
    )
    assert manifest.total_bytes == 11
    check(manifest)


def test_a_manifest_equals_the_one_that_was_laid_out_by_hand() -> None:
    tensors = sample_tensors()

    assert build_manifest(dict(reversed(tensors.items()))) == lay_out(tensors)[0]


def test_views_have_the_bits_of_their_tensors_and_share_memory_where_they_can() -> None:
    tensors = sample_tensors()
    manifest, data = lay_out(tensors)

    views = tensor_views(manifest, data)

    assert all(same_bits(views[name], tensors[name]) for name in tensors)
    assert views["b.bytes"].data_ptr() == data.data_ptr()


def test_every_change_of_content_changes_the_manifest_hash_and_only_layout_the_other() -> None:
    tensors = sample_tensors()
    manifest = build_manifest(tensors)
    changed = build_manifest({**tensors, "e.scalar": torch.tensor(-4, dtype=torch.int64)})
    reshaped = build_manifest({**tensors, "c.weight": tensors["c.weight"].reshape(11, 5)})

    assert (changed.layout_hash, reshaped.layout_hash != manifest.layout_hash) == (manifest.layout_hash, True)
    assert len({manifest.manifest_hash, changed.manifest_hash, reshaped.manifest_hash}) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "n" * 513},
        {"name": "a\0b"},
        {"name": "__metadata__"},
        {"dtype": "F8_E4M3"},
        {"dtype": "d" * 100_000},
        {"shape": (1,) * 9},
        {"shape": (-2, -3)},
        {"shape": (2, 4)},
        {"shape": (0, 1 << 62, 1 << 62), "length": 0},
        {"length": 23},
        {"offset": 4},
        {"xxh3": b""},
    ],
    ids=str,
)
def test_inconsistent_tensors_are_refused_in_few_words(changes: dict[str, object]) -> None:
    with pytest.raises(MalformedData) as caught:
        check(one_entry(**changes))
    assert len(caught.value.message) < 1000


def test_a_name_that_utf8_cannot_spell_is_refused() -> None:
    entry = TensorEntry("\ud800", "F32", (1,), 0, 4, bytes(16))

    with pytest.raises(MalformedData):
        check(Manifest((entry,), 4, "", ""))


@pytest.mark.parametrize(
    "changes", [{"total_bytes": 5}, {"manifest_hash": "0" * 32}, {"layout_hash": "0" * 32}, {"total_bytes": -1}]
)
def test_totals_and_hashes_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(MalformedData):
        check(replace(one_entry(), **changes))


def test_a_tensor_that_appears_twice_is_refused() -> None:
    entries = (TensorEntry("w", "F32", (1,), 0, 4, bytes(16)), TensorEntry("w", "F32", (1,), 4, 4, bytes(16)))

    with pytest.raises(MalformedData, match="twice"):
        check(Manifest(entries, 8, content_hash(entries), layout_hash(entries)))


def test_limits_are_named() -> None:
    manifest = one_entry()
    with pytest.raises(LimitExceeded, match="manifest_tensors"):
        validate_manifest(manifest, max_tensors=0, max_bytes=100)
    with pytest.raises(LimitExceeded, match="weights_bytes"):
        validate_manifest(manifest, max_tensors=1, max_bytes=23)
