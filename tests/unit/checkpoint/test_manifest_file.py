import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from common.checkpoint.manifest_file import CheckpointManifest, FileEntry, read_manifest, verify, write_manifest
from common.errors import CheckpointInvalid

STATE = {"frontiers": {"explorer-1": 17}, "text": "a\u00e4\U0001f600", "lr": 1e-6, "pair": (1, 2), "none": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(b"hello")
    (folder / "sub" / "b").write_bytes(b"")
    write_manifest(folder, 10, 2, STATE)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest's content and gives it the hash that its format documents."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"content": content, "xxh3": xxhash.xxh3_128(canonical.encode()).hexdigest()}))


def test_a_folder_verifies_with_the_sizes_and_hashes_of_its_files(folder: Path) -> None:
    manifest = verify(folder)

    assert (manifest.step, manifest.run_epoch) == (10, 2)
    assert manifest.files == (
        FileEntry("a", 5, xxhash.xxh3_128(b"hello").hexdigest()),
        FileEntry("sub/b", 0, xxhash.xxh3_128(b"").hexdigest()),
    )
    assert manifest.state == {**STATE, "pair": [1, 2]}


def test_a_large_file_is_hashed_in_blocks_to_the_same_hash(folder: Path) -> None:
    content = os.urandom((5 << 20) + 13)
    (folder / "large").write_bytes(content)

    manifest = write_manifest(folder, 10, 2, {})

    assert FileEntry("large", len(content), xxhash.xxh3_128(content).hexdigest()) in manifest.files
    assert verify(folder) == manifest


def flip(path: Path, byte: int, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1 << bit
    path.write_bytes(raw)


def test_every_flipped_bit_of_a_file_is_found(folder: Path) -> None:
    for byte in range(5):
        for bit in range(8):
            flip(folder / "a", byte, bit)
            with pytest.raises(CheckpointInvalid, match="checkpoint/a has hash"):
                verify(folder)
            flip(folder / "a", byte, bit)
    verify(folder)


def manifest_or_error(folder: Path) -> CheckpointManifest | str:
    try:
        return read_manifest(folder)
    except CheckpointInvalid as error:
        return error.message


def test_every_flipped_bit_of_the_manifest_is_found_or_changes_nothing(folder: Path) -> None:
    path = folder / "manifest.json"
    good = read_manifest(folder)
    for byte in range(path.stat().st_size):
        flip(path, byte, byte % 8)
        outcome = manifest_or_error(folder)
        # Nothing changes when a space becomes another white space, or a digit of a \u escape changes its case.
        assert outcome == good or str(path) in str(outcome)
        flip(path, byte, byte % 8)


def swap(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: (folder / "a").unlink(), r"a is missing"),
    "shorter": (lambda folder: (folder / "a").write_bytes(b"hell"), r"a has 4 bytes, the manifest says 5"),
    "longer": (lambda folder: (folder / "a").write_bytes(b"hello!"), r"a has 6 bytes, the manifest says 5"),
    "unlisted": (lambda folder: (folder / "extra").write_bytes(b""), r"extra is not in the manifest"),
    "unlisted link": (lambda folder: (folder / "extra").symlink_to("/"), r"extra is not in the manifest"),
    "fifo": (lambda folder: swap(folder / "a", os.mkfifo), r"a is not a regular file"),
    "folder": (lambda folder: swap(folder / "a", Path.mkdir), r"a is not a regular file"),
    "symlink": (lambda folder: swap(folder / "a", lambda path: path.symlink_to("sub/b")), r"a is not a regular file"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), r"manifest.json is missing"),
    "manifest fifo": (lambda folder: swap(folder / "manifest.json", os.mkfifo), r"manifest.json is not a regular file"),
    "manifest link": (
        lambda folder: swap(folder / "manifest.json", lambda path: path.symlink_to("a")),
        r"manifest.json is not a regular file",
    ),
    "manifest empty": (lambda folder: (folder / "manifest.json").write_bytes(b""), r"manifest.json: "),
    "manifest huge": (
        lambda folder: os.truncate(folder / "manifest.json", (16 << 20) + 1),
        r"manifest.json has 16777217 bytes, at most 16777216",
    ),
    "manifest deep": (lambda folder: (folder / "manifest.json").write_bytes(b"[" * 10**6), r"nested too deeply"),
    "manifest list": (lambda folder: (folder / "manifest.json").write_bytes(b"[]"), r"not an object of"),
    "duplicate key": (
        lambda folder: (folder / "manifest.json").write_bytes(b'{"content":{},"content":{},"xxh3":""}'),
        r"a key appears twice",
    ),
    "unknown format": (lambda folder: rewrite(folder, lambda content: content.update(format=2)), r"format 2, known"),
    "no format": (lambda folder: rewrite(folder, lambda content: content.pop("format")), r"format None, known"),
    "no step": (lambda folder: rewrite(folder, lambda content: content.pop("step")), r"manifest.json: 'step'"),
    "negative": (lambda folder: rewrite(folder, lambda content: content.update(step=-1)), r"-1 is not a count"),
    "boolean": (lambda folder: rewrite(folder, lambda content: content.update(step=True)), r"True is not a count"),
    "listed twice": (
        lambda folder: rewrite(folder, lambda content: content["files"].append(content["files"][0])),
        r"listed twice",
    ),
    "files no list": (lambda folder: rewrite(folder, lambda content: content.update(files={})), r"no list"),
    "file no object": (lambda folder: rewrite(folder, lambda content: content.update(files=[3])), r"manifest.json: "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_with_the_file_and_why(folder: Path, damage: str) -> None:
    inflict, message = DAMAGE[damage]
    inflict(folder)

    with pytest.raises(CheckpointInvalid, match=message):
        verify(folder)
    # None of these needs the files to be read.
    with pytest.raises(CheckpointInvalid, match=message):
        verify(folder, contents=False)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "sub/../a", "", "a//b", "a\0", ".hidden/x", 3, None, "./a"])
def test_names_that_lead_out_of_the_folder_are_refused(folder: Path, name: object) -> None:
    rewrite(folder, lambda content: content["files"][0].update(name=name))

    with pytest.raises(CheckpointInvalid, match="is no name of a file"):
        read_manifest(folder)


def test_what_file_systems_leave_behind_does_not_matter(folder: Path) -> None:
    (folder / ".nfs0001").write_bytes(b"")
    (folder / ".snapshot").mkdir()
    (folder / ".snapshot" / "x").write_bytes(b"")

    verify(folder)


def test_state_that_is_no_json_is_refused_when_written(folder: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_manifest(folder, 1, 1, {"loss": float("nan")})
    with pytest.raises(ValueError, match="at most"):
        write_manifest(folder, 1, 1, {"bulk": "x" * (16 << 20)})
