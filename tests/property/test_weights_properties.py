"""Whatever a peer or a file holds, weights either arrive bit by bit or are refused with an error of ours."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from common.checkpoint.manifest_file import verify
from common.checkpoint.paths import resolve_under
from common.checkpoint.safetensors_header import parse_header
from common.checkpoint.weights_file import read_weights, write_weights
from common.errors import CheckpointInvalid, CorruptData, LimitExceeded, MalformedData, ProtocolViolation, UnsafePath
from common.weights.manifest import (
    DTYPES,
    Manifest,
    TensorEntry,
    build_manifest,
    content_hash,
    layout_hash,
    tensor_views,
    validate_manifest,
)
from common.weights.receive import WeightReceiver
from common.weights.shards import chunks
from tests.support.weights import lay_out, same_bits, sample_tensors

FEW = settings(max_examples=40, deadline=None)
COUNTS = st.one_of(st.integers(0, 6), st.integers(-3, 2**64))

entries = st.builds(
    TensorEntry,
    name=st.text(max_size=4),
    dtype=st.one_of(st.sampled_from(sorted(DTYPES)), st.text(max_size=3)),
    shape=st.lists(COUNTS, max_size=4).map(tuple),
    offset=COUNTS,
    length=COUNTS,
    xxh3=st.one_of(st.just(bytes(16)), st.binary(max_size=17)),
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Arbitrary ones; half of them with the hashes that fit, so that what else is wrong must be found."""
    tensors = draw(st.lists(entries, max_size=4).map(tuple))
    total = draw(st.one_of(st.just(sum(entry.length for entry in tensors)), COUNTS))
    if draw(st.booleans()):
        return Manifest(tensors, total, draw(st.text(max_size=4)), draw(st.text(max_size=4)))
    try:
        return Manifest(tensors, total, content_hash(tensors), layout_hash(tensors))
    except UnicodeEncodeError:
        return Manifest(tensors, total, "", "")


@st.composite
def versions(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Small weights of any names, dtypes, shapes and bits."""
    names = draw(
        st.lists(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6),
            unique=True,
            max_size=5,
        )
    )
    tensors = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64]))
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = draw(st.binary(min_size=size, max_size=size))
        bits = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.zeros(0, dtype=dtype)
        tensors[name] = bits.reshape(shape)
    return tensors


@settings(max_examples=100, deadline=None)
@given(manifests())
def test_an_arbitrary_manifest_is_valid_to_the_byte_or_refused(manifest: Manifest) -> None:
    try:
        validate_manifest(manifest, max_tensors=3, max_bytes=1 << 16)
    except (MalformedData, LimitExceeded):
        return
    views = tensor_views(manifest, torch.zeros(manifest.total_bytes, dtype=torch.uint8))
    assert [tuple(view.shape) for view in views.values()] == [entry.shape for entry in manifest.tensors]
    assert sum(view.nbytes for view in views.values()) == manifest.total_bytes


@FEW
@given(versions(), st.integers(1, 40), st.data())
def test_any_version_arrives_bit_by_bit_however_it_is_cut_and_disturbed(
    tensors: dict[str, torch.Tensor], chunk_bytes: int, data: st.DataObject
) -> None:
    manifest, raw = lay_out(tensors)
    receiver = WeightReceiver(max_tensors=10, max_bytes=1 << 16)
    start = receiver.offer(1, 1, manifest)
    for _ in range(30):
        for piece in chunks(raw, start, chunk_bytes):
            fault = data.draw(st.sampled_from(["none", "none", "flip", "twice", "skip", "cut"]))
            content = bytearray(piece.data)
            if fault == "flip":
                content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            before = receiver.received
            try:
                for _ in range({"skip": 0, "cut": 0, "twice": 2}.get(fault, 1)):
                    receiver.write(piece.offset, piece.xxh3, bytes(content))
            except CorruptData:
                assert receiver.received == before
            if fault == "cut":
                break
        start = receiver.offer(1, 1, manifest)
        if start == manifest.total_bytes:
            break
    for piece in chunks(raw, start, chunk_bytes):
        receiver.write(piece.offset, piece.xxh3, piece.data)

    staged = receiver.finish()
    assert list(staged.tensors) == list(tensors)
    assert all(same_bits(staged.tensors[name], tensors[name]) for name in tensors)


@FEW
@given(st.lists(st.tuples(st.integers(-5, 300), st.binary(max_size=40), st.booleans()), max_size=20))
def test_arbitrary_chunks_raise_only_errors_of_ours_and_never_pass_as_a_version(
    pieces: list[tuple[int, bytes, bool]],
) -> None:
    manifest, _ = lay_out(sample_tensors())
    receiver = WeightReceiver(max_tensors=10, max_bytes=1 << 16)
    receiver.offer(1, 1, manifest)
    for offset, content, honest in pieces:
        before = receiver.received
        try:
            receiver.write(offset, xxhash.xxh3_64_intdigest(content) if honest else 0, content)
        except (CorruptData, ProtocolViolation):
            assert receiver.received == before
    try:
        receiver.finish()
    except (CorruptData, ProtocolViolation):
        return
    raise AssertionError("random bytes passed as weights")


@FEW
@given(versions())
def test_any_version_survives_its_file(tensors: dict[str, torch.Tensor]) -> None:
    tensors = {name: tensor for name, tensor in tensors.items() if name != "__metadata__"}
    manifest, data = lay_out(tensors)
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder, "model.safetensors"), manifest, data)
        read_manifest, read = read_weights(Path(folder))
        assert all(same_bits(read[name], tensors[name]) for name in tensors)
    # Tensors without bytes have no place of their own in a file; all others keep the order of the export.
    assert read_manifest == manifest
    assert build_manifest(read) == build_manifest(tensors)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2**65), st.floats(), st.text(max_size=3), st.just("U8")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a", ""]), inner, max_size=4
        ),
    ),
    max_leaves=12,
)
tensor_like = st.fixed_dictionaries(
    {"dtype": st.one_of(st.just("U8"), json_values), "shape": st.one_of(st.lists(COUNTS, max_size=2), json_values)}
    | {"data_offsets": st.one_of(st.lists(st.integers(0, 8), min_size=2, max_size=2), json_values)}
)


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.dictionaries(st.text(max_size=2), st.one_of(tensor_like, json_values))))
def test_an_arbitrary_header_gives_tensors_that_fill_the_file_or_an_error_of_ours(header: object) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    try:
        found, _ = parse_header(text, 8, max_tensors=4)
    except (MalformedData, LimitExceeded):
        return
    assert sum(entry.length for entry in found) == 8


@FEW
@given(st.one_of(st.binary(max_size=80), json_values.map(lambda value: json.dumps(value).encode())))
def test_an_arbitrary_manifest_file_is_refused_as_an_invalid_checkpoint(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "manifest.json").write_bytes(content)
        try:
            verify(Path(folder))
        except CheckpointInvalid:
            return
    raise AssertionError("random bytes passed as a manifest")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "link", "\0", "/", "up"]), max_size=5).map("/".join))
def test_no_path_leads_out_of_its_root(relative: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "root"
        (root / "a" / "b").mkdir(parents=True)
        (root / "link").symlink_to(root / "a")
        (root / "a" / "up").symlink_to(root.parent)
        try:
            found = resolve_under(root, relative)
        except (UnsafePath, CheckpointInvalid):
            return
        assert found.is_relative_to(root)
        assert found.exists()
