"""Damaged and random bytes for everything that reads what a peer, a file or a user gives.

`python tests/fuzz/fuzz_decoders.py [INPUTS] [SEED]` gives INPUTS (1,200,000 if not said) to all decoders together, in a process that may not
take more than 512 MiB of addresses above what it starts with. Whatever raises anything but our own errors, takes longer than two
seconds, or asks for too much memory, is shown as hex and makes the exit code 1. The last line is one JSON object.
"""

import contextlib
import gc
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import xxhash

from common.audit.records import Cut, Frontier, Groups, Saved, Start, Step, decode, encode
from common.checkpoint.manifest_file import MANIFEST_NAME, read_manifest, write_manifest
from common.checkpoint.safetensors_header import LENGTH_BYTES, build_header, header_length, parse_header
from common.checkpoint.strict_json import parse_strictly
from common.config.root import LimitsConfig
from common.config.validate import validate
from common.config.yaml_source import parse as parse_yaml
from common.errors import MalformedData, TandemError
from common.experience.columns import Columns
from common.experience.columns import decode as decode_columns
from common.experience.columns import encode as encode_columns
from common.spool_file import read_spool
from common.weights import delta, delta_zstd
from common.weights.manifest import validate_manifest
from common.wire.bulk import BatchView, parse_push_request, parse_stream_response, serialize_push_chunk, wrap_batch
from common.wire.experiences import batch_from_view, batch_to_wire
from common.wire.manifests import manifest_from_proto, manifest_to_proto
from explorer_service.spool import Spool
from protos.tandem.v1 import explorer_pb2, weights_pb2
from tests.support.experience_samples import group, two_experiences
from tests.support.pair_config import SETTINGS
from tests.support.weights import lay_out, sample_tensors

LIMITS = LimitsConfig(batch_experiences=64, experience_tokens=4096, manifest_tensors=64, weights_bytes=1 << 20)
SECONDS = 2.0
MEMORY_BYTES = 512 << 20
BOUNDARIES = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
WORDS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"true",
    b"\\ud800",
    b"../",
    b"\0",
    b"&a",
    b"*a",
    b"<<: ",
)
NUMBER = frozenset(b"0123456789")
SHOWN = 3

Decoder = Callable[[bytes], object]


def damage(pick: random.Random, sample: bytes, others: list[bytes]) -> bytes:
    """The sample after one to four changes of the kinds that parsers trip over."""
    data = bytearray(sample)
    for _ in range(pick.choice((1, 1, 1, 2, 4))):
        size = len(data)
        at = pick.randrange(size + 1)
        match pick.randrange(10):
            case 0 | 1 if size:
                data[at % size] ^= 1 << pick.randrange(8)
            case 2 if size:
                data[at % size] = pick.randrange(256)
            case 3:
                word = struct.pack(pick.choice("<>") + "Q", pick.choice(BOUNDARIES))
                width = pick.choice((1, 2, 4, 8))
                data[at : at + width] = word[:width]
            case 4:
                del data[at:]
            case 5:
                end = min(size, at + pick.randrange(1, 64))
                data[at:at] = data[at:end]
            case 6:
                del data[at : at + pick.randrange(1, 16)]
            case 7:
                data[at:at] = pick.choice(WORDS)
            case 8:
                other = pick.choice(others)
                data[at:] = other[pick.randrange(len(other) + 1) :]
            case _:
                _replace_number(pick, data)
    return bytes(data)


def _replace_number(pick: random.Random, data: bytearray) -> None:
    places = [at for at, byte in enumerate(data) if byte in NUMBER]
    if places:
        start = end = pick.choice(places)
        while end < len(data) and data[end] in NUMBER:
            end += 1
        data[start:end] = str(pick.choice(BOUNDARIES) * pick.choice((1, -1))).encode()


def targets(folder: Path) -> dict[str, tuple[list[bytes], Decoder, float]]:
    """By name: samples of valid input, the decoder, and its share of the inputs."""
    manifest, data = lay_out(sample_tensors())
    base = data.numpy()
    changed = base.copy()
    changed[[3, 60, 61, 200]] ^= 5
    plain = delta.encode(base, changed, manifest)
    assert plain is not None
    columns = encode_columns(Columns.from_experiences(two_experiences()))
    batch = bytes(batch_to_wire("explorer-0", 3, [group("t", 7, two_experiences())], send_text=True))
    header = build_header(manifest, {"format": "pt"})
    chunk = serialize_push_chunk(4096, xxhash.xxh3_64_intdigest(b"x" * 100), b"x" * 100)
    offer = weights_pb2.WeightOffer(manifest=manifest_to_proto(manifest), encoded_bytes=manifest.total_bytes)
    push = explorer_pb2.PushWeightsRequest(offer=offer).SerializeToString()
    hello = explorer_pb2.StreamExperiencesResponse(hello=explorer_pb2.Hello(explorer_id="e", tasks_held=[1, 2]))
    one = np.arange(2, dtype=np.int64)
    groups = Groups(("e", "f"), *([one] * 8))
    ledger = [
        Start("r", "main", 2, Cut(1, 4, 9), {"e": Frontier(3, 6)}, 2, "fixed", acknowledges_steps=False, time=1.5),
        Step(1, applied=True, groups=groups),
        Saved(1, 2, {"e": Frontier(3, 6)}),
    ]
    (folder / "model.bin").write_bytes(b"weights")
    write_manifest(folder, 3, 1, {"step": 3, "source": {"accounts": {}}})
    written = (folder / MANIFEST_NAME).read_bytes()
    text = json.dumps(SETTINGS).encode()
    yaml = b"run:\n  name: pair\n  seed: 3\nmodel: {path: x, max_length: 0x20}\ntaskset:\n  name: digit_skills\n  options: &a {count: 8, 'x': [1e5, b]}\n"
    spool = _spool(folder / "spools")
    return {
        "experience columns": ([columns], lambda raw: decode_columns(raw, LIMITS), 3),
        "experience batch, checksum made right": ([batch, wrap_batch(batch)], _batch, 2),
        "explorer's stream": ([wrap_batch(batch), hello.SerializeToString()], parse_stream_response, 2),
        "push": ([chunk, push], parse_push_request, 2),
        "weight manifest": ([manifest_to_proto(manifest).SerializeToString()], _manifest, 2),
        "delta": ([plain.tobytes()], lambda raw: delta.decode(_array(raw), manifest, base.copy()), 2),
        "compressed delta": (
            [delta_zstd.compress(plain, manifest, base).tobytes()],
            lambda raw: delta.apply(delta_zstd.decompress(_array(raw), manifest, base), base.copy()),
            2,
        ),
        "safetensors header": ([header], lambda raw: _header(raw, manifest.total_bytes), 2),
        "checkpoint manifest": ([written], lambda raw: _checkpoint(folder, raw), 1),
        "checkpoint manifest, hash made right": ([written], lambda raw: _checkpoint(folder, _sealed_manifest(raw)), 1),
        "ledger line": ([encode(n, record)[:-1] for n, record in enumerate(ledger)], _ledger, 1),
        "ledger line, hash made right": (
            [encode(n, record)[:-1] for n, record in enumerate(ledger)],
            lambda raw: _ledger(_sealed_line(raw)),
            2,
        ),
        "YAML": ([text, yaml], _yaml, 1),
        "spool file": ([spool.read_bytes()], lambda raw: _read_spool(folder / "spools" / "damaged.spool", raw), 0.5),
    }


def _array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, dtype=np.uint8)


def _batch(raw: bytes) -> object:
    message = parse_stream_response(raw if raw[:1] == wrap_batch(b"")[:1] else wrap_batch(raw))
    if not isinstance(message, BatchView):
        return message
    message.fields.columns_xxh3 = xxhash.xxh3_64_intdigest(message.columns)
    return batch_from_view(message, LIMITS)


def _manifest(raw: bytes) -> object:
    message = weights_pb2.Manifest()
    with contextlib.suppress(Exception):  # what protobuf itself refuses never reaches us
        message.ParseFromString(raw)
    manifest = manifest_from_proto(message, LIMITS)
    validate_manifest(manifest, max_tensors=LIMITS.manifest_tensors, max_bytes=LIMITS.weights_bytes)
    return manifest


def _header(raw: bytes, data_bytes: int) -> object:
    length = header_length(raw[:LENGTH_BYTES], len(raw) + data_bytes)
    return parse_header(raw[LENGTH_BYTES : LENGTH_BYTES + length], data_bytes, max_tensors=64)


def _checkpoint(folder: Path, raw: bytes) -> object:
    (folder / MANIFEST_NAME).write_bytes(raw)
    return read_manifest(folder)


def _sealed_manifest(raw: bytes) -> bytes:
    try:
        document = parse_strictly(raw)
        content = document["content"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, KeyError):
        return raw
    return json.dumps({"content": content, "xxh3": xxhash.xxh3_128_hexdigest(canonical.encode())}).encode()


def _ledger(raw: bytes) -> object:
    try:
        return decode(raw)
    except ValueError as error:  # what it promises
        raise MalformedData(str(error)) from error


def _sealed_line(raw: bytes) -> bytes:
    body, hash_begins, _ = raw.rpartition(b',"xxh3":"')
    return body + hash_begins + xxhash.xxh3_64_hexdigest(body).encode() + b'"}' if hash_begins else raw


def _yaml(raw: bytes) -> object:
    document = parse_yaml(raw.decode(errors="replace"), "fuzz")
    return validate(document) if isinstance(document, dict) else document


def _spool(folder: Path) -> Path:
    folder.mkdir()
    spool = Spool.open(folder / "sample.spool", "run", "explorer-0")
    for number in range(3):
        spool.append(lambda sequence: bytes([sequence]) * 300, 2, {"progress": number})
    spool.close()
    return folder / "sample.spool"


def _read_spool(path: Path, raw: bytes) -> object:
    path.write_bytes(raw)
    return read_spool(path)


def main() -> int:
    """Gives everybody their share; returns the exit code."""
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_200_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        decoders = targets(Path(folder))
        gc.collect()
        allowed = psutil.Process().memory_info().vms + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        whole = sum(share for _, _, share in decoders.values())
        results: dict[str, dict[str, int]] = {}
        for name, (samples, decoder, share) in decoders.items():
            results[name] = _fuzz(
                name, samples, decoder, round(inputs * share / whole), random.Random(f"{seed} {name}")
            )
    found = sum(result["wrong"] for result in results.values())
    given = sum(result["inputs"] for result in results.values())
    sys.stdout.write(json.dumps({"inputs": given, "wrong": found, "seed": seed}) + "\n")
    return 1 if found else 0


def _fuzz(name: str, samples: list[bytes], decoder: Decoder, inputs: int, pick: random.Random) -> dict[str, int]:
    for sample in samples:
        decoder(sample)  # valid, or the fuzzing would be of the wrong thing
    taken = wrong = 0
    slowest = 0.0
    for number in range(inputs):
        raw = pick.randbytes(pick.randrange(200)) if number % 20 == 0 else damage(pick, pick.choice(samples), samples)
        began = time.perf_counter()
        problem = ""
        try:
            decoder(raw)
            taken += 1
        except TandemError:
            pass
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            problem = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        slowest = max(slowest, seconds)
        if seconds > SECONDS:
            problem = problem or f"took {seconds:.1f} s"
        if problem:
            wrong += 1
            if wrong <= SHOWN:
                sys.stdout.write(f"{name}: {problem:.300}\n  {raw.hex()[:2000]}\n")
    sys.stdout.write(
        f"{name:40} {inputs:9,} inputs, {taken:9,} taken, {wrong} wrong, slowest {1000 * slowest:.1f} ms\n"
    )
    sys.stdout.flush()
    return {"inputs": inputs, "taken": taken, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
