"""`manifest.json`: what a checkpoint folder must hold to be complete, written last.

`{"content": {"format", "step", "run_epoch", "files": [{"name", "size", "xxh3"}], "state"}, "xxh3": ...}`, where the outer
hash is that of `content` in canonical form (keys sorted, no spaces, ASCII), so that a flipped bit in it shows too.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import xxhash

from common.checkpoint.files import hash_file, read_bounded
from common.checkpoint.strict_json import parse_strictly
from common.errors import CheckpointInvalid, StorageFailed

MANIFEST_NAME = "manifest.json"
FORMAT = 1
"""Raised when the meaning of the file changes; another one is refused."""
MAX_MANIFEST_BYTES = 16 << 20
MAX_FILES = 10_000
HASH_THREADS = 4
"""xxhash lets go of the GIL; more than a few threads only wait for the disk."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    name: str
    """Path relative to the checkpoint's folder, with `/`."""
    size: int
    """Bytes."""
    xxh3: str
    """Hex xxh3-128 of the content."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """What a checkpoint folder holds."""

    step: int
    """Trainer steps done when it was written."""
    run_epoch: int
    """The trainer's start that wrote it."""
    files: tuple[FileEntry, ...]
    """All files but the manifest itself, by name."""
    state: Mapping[str, Any]
    """Whatever else belongs to the consistent cut, as JSON."""


def write_manifest(directory: Path, step: int, run_epoch: int, state: Mapping[str, Any]) -> CheckpointManifest:
    """Hashes all files below `directory` and writes its manifest, without fsync.

    Raises ValueError when `state` is no JSON or too large to be read again, OSError or StorageFailed when the disk fails.
    """
    names = sorted(_list_files(directory))
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        digests = list(pool.map(hash_file, [directory / name for name in names]))
    files = [{"name": name, "size": size, "xxh3": xxh3} for name, (size, xxh3) in zip(names, digests, strict=True)]
    content = {"format": FORMAT, "step": step, "run_epoch": run_epoch, "files": files, "state": dict(state)}
    # Once through JSON, so that what is hashed is what will be read: JSON has no tuples and no integer keys.
    content = json.loads(json.dumps(content, allow_nan=False))
    text = json.dumps({"content": content, "xxh3": _content_hash(content)}, indent=1, allow_nan=False).encode()
    if len(text) > MAX_MANIFEST_BYTES:
        raise ValueError(f"the manifest has {len(text)} bytes, at most {MAX_MANIFEST_BYTES}: keep bulk data in files")
    (directory / MANIFEST_NAME).write_bytes(text)
    return _parse_content(content)


def read_manifest(directory: Path) -> CheckpointManifest:
    """The manifest of a folder, whole in itself; the files it names are not looked at. Raises CheckpointInvalid."""
    path = directory / MANIFEST_NAME
    try:
        document = parse_strictly(read_bounded(path, MAX_MANIFEST_BYTES))
        if not isinstance(document, dict) or document.keys() != {"content", "xxh3"}:
            raise ValueError("not an object of `content` and `xxh3`")  # noqa: TRY301 - one place names the file
        content = document["content"]
        if not isinstance(content, dict):
            raise TypeError("`content` is no object")  # noqa: TRY301 - as above
        if content.get("format") != FORMAT:
            raise ValueError(f"format {ascii(content.get('format'))[:40]}, known is {FORMAT}")  # noqa: TRY301
        if document["xxh3"] != _content_hash(content):
            raise ValueError("its hash does not match")  # noqa: TRY301
        return _parse_content(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointInvalid(f"{path}: {error}") from error


def verify(directory: Path, *, contents: bool = True) -> CheckpointManifest:
    """The manifest of a complete checkpoint; `contents=False` compares names and sizes only, which is fast.

    Raises CheckpointInvalid naming the file and why: missing, not regular, unlisted, another size, another hash, or a
    manifest that is damaged, too large or of an unknown format. Names that start with a dot are not looked at: file
    systems and desktops leave such.
    """
    manifest = read_manifest(directory)
    found = _list_files(directory)
    listed = {entry.name for entry in manifest.files}
    for name in sorted(found - listed):
        raise CheckpointInvalid(f"{directory / name} is not in the manifest")
    for entry in manifest.files:
        _check_size(directory, entry)
    if contents:
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            for entry, (_, xxh3) in zip(
                manifest.files, pool.map(hash_file, [directory / entry.name for entry in manifest.files]), strict=True
            ):
                if xxh3 != entry.xxh3:
                    raise CheckpointInvalid(f"{directory / entry.name} has hash {xxh3}, the manifest says {entry.xxh3}")
    return manifest


def _check_size(directory: Path, entry: FileEntry) -> None:
    path = directory / entry.name
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointInvalid(f"{path} is missing") from error
    except OSError as error:
        raise StorageFailed(f"cannot look at {path}: {error.strerror}", path=path) from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointInvalid(f"{path} is not a regular file")
    if status.st_size != entry.size:
        raise CheckpointInvalid(f"{path} has {status.st_size} bytes, the manifest says {entry.size}")


def _list_files(directory: Path) -> set[str]:
    """Everything below that is no folder, symlinks to folders included, as relative paths; no dot names, no manifest."""
    found: set[str] = set()
    for parent, folders, files in os.walk(directory, onerror=_raise):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = [name for name in folders if not name.startswith(".")]
        found.update(
            Path(parent, name).relative_to(directory).as_posix() for name in files + links if not name.startswith(".")
        )
        if len(found) > MAX_FILES:
            raise CheckpointInvalid(f"{directory} has more than {MAX_FILES} files")
    found.discard(MANIFEST_NAME)
    return found


def _raise(error: OSError) -> NoReturn:
    raise StorageFailed(f"cannot list {error.filename}: {error.strerror}") from error


def _content_hash(content: object) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return str(xxhash.xxh3_128_hexdigest(canonical.encode()))


def _parse_content(content: dict[str, Any]) -> CheckpointManifest:
    """Raises ValueError, TypeError or KeyError."""
    state, entries = content["state"], content["files"]
    if not isinstance(state, dict) or not isinstance(entries, list) or len(entries) > MAX_FILES:
        raise TypeError("`state` is no object, or `files` no list of bearable length")
    files = tuple(FileEntry(_file_name(entry["name"]), _count(entry["size"]), str(entry["xxh3"])) for entry in entries)
    if len({entry.name for entry in files}) != len(files):
        raise ValueError("a file is listed twice")
    return CheckpointManifest(_count(content["step"]), _count(content["run_epoch"]), files, state)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{ascii(value)[:40]} is not a count")
    return value


def _file_name(value: object) -> str:
    """A relative path in its plain form, as `_list_files` writes it: nothing that could lead out of the folder."""
    if not isinstance(value, str) or "\0" in value or any(not part or part[0] == "." for part in value.split("/")):
        raise ValueError(f"{ascii(value)[:80]} is no name of a file")
    return value
