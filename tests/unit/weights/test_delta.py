import struct

import numpy as np
import pytest
import torch

from common.errors import MalformedData
from common.weights.delta import BLOCK_WORDS, decode, encode, spans
from common.weights.manifest import Manifest
from tests.support.weights import lay_out, sample_tensors


def three_blocks() -> tuple[Manifest, np.ndarray, np.ndarray]:
    """Two bf16 tensors, 2 blocks and 10 words together; four words differ, two of them in the last block."""
    base = {"a": torch.zeros(BLOCK_WORDS + 4, dtype=torch.bfloat16), "b": torch.zeros(BLOCK_WORDS + 6).bfloat16()}
    manifest, data = lay_out(base)
    new = data.numpy().copy()
    words = new.view(np.uint16)
    words[[3, BLOCK_WORDS - 1, 2 * BLOCK_WORDS, 2 * BLOCK_WORDS + 9]] = [0x1234, 0x8000, 0x0001, 0xFFFF]
    return manifest, data.numpy(), new


def written(counts: list[int], offsets: list[int], values: list[int]) -> np.ndarray:
    """The encoded bytes by struct, as the module's docstring describes them."""
    raw = (
        struct.pack(f"<{len(counts)}I", *counts)
        + struct.pack(f"<{len(offsets)}H", *offsets)
        + struct.pack(f"<{len(values)}H", *values)
    )
    return np.frombuffer(raw, dtype=np.uint8)


GOOD = ([2, 0, 2], [3, BLOCK_WORDS - 1, 0, 9], [0x1234, 0x8000, 0x0001, 0xFFFF])


def test_the_bytes_are_those_that_the_format_says() -> None:
    manifest, base, new = three_blocks()

    encoded = encode(base, new, manifest)

    assert encoded is not None
    assert encoded.tobytes() == written(*GOOD).tobytes()


def test_bytes_written_by_hand_are_applied_in_place_and_once_more_change_nothing() -> None:
    manifest, base, new = three_blocks()
    data = base.copy()

    decode(written(*GOOD), manifest, data)
    assert data.tobytes() == new.tobytes()
    decode(written(*GOOD), manifest, data)
    assert data.tobytes() == new.tobytes()


def test_every_dtype_arrives_bit_by_bit_also_misaligned_nan_and_negative_zero() -> None:
    tensors = sample_tensors()
    manifest, base = lay_out(tensors)
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    changed["b.bytes"][6] = 200
    changed["c.weight"][0, 0] = float("nan")
    changed["d.half"][[0, 32]] = torch.tensor([-0.0, float("inf")], dtype=torch.bfloat16)
    changed["e.scalar"].fill_(1 << 40)
    changed["f.flags"][1] = True
    _, new = lay_out(changed)
    data = base.numpy().copy()

    encoded = encode(base.numpy(), new.numpy(), manifest)

    assert encoded is not None
    assert encoded.size < manifest.total_bytes
    decode(encoded, manifest, data)
    assert data.tobytes() == new.numpy().tobytes()


def test_spans_join_neighbours_of_one_word_size_and_skip_empty_tensors() -> None:
    manifest, _ = lay_out(sample_tensors())

    # 7 bytes; 55 fp32; 33 bf16; one int64; 3 bools.
    assert [(span.start, span.words, span.word_bytes) for span in spans(manifest)] == [
        (0, 7, 1),
        (7, 55, 4),
        (227, 33, 2),
        (293, 1, 8),
        (301, 3, 1),
    ]


def test_a_delta_that_would_not_be_smaller_than_the_version_is_not_made() -> None:
    manifest, base = lay_out({"w": torch.zeros(1000, dtype=torch.bfloat16)})
    half, more = base.numpy().copy(), base.numpy().copy()
    half.view(np.uint16)[:498] = 1
    more.view(np.uint16)[:499] = 1

    # One count of 4 bytes, and 4 bytes a change, of 2000.
    assert encode(base.numpy(), half, manifest) is not None
    assert encode(base.numpy(), more, manifest) is None


def test_versions_without_bytes_have_no_delta() -> None:
    manifest, data = lay_out({})
    assert encode(data.numpy(), data.numpy(), manifest) is None


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (written([2, 0], [], []), "too short"),
        (written([2, 0, 2], GOOD[1], GOOD[2][:3]), "need"),
        (written([2, 0, 2], GOOD[1], [*GOOD[2], 7]), "need"),
        (written([0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF], [], []), "more changes than it has words"),
        (written([2, 0, 11], [3, 4, *range(11)], [0] * 13), "more changes than it has words"),
        (written([2, 0, 2], [3, 3, 0, 9], GOOD[2]), "do not increase"),
        (written([2, 0, 2], [4, 3, 0, 9], GOOD[2]), "do not increase"),
        (written([2, 0, 2], [3, 4, 9, 0], GOOD[2]), "do not increase"),
        (written([2, 0, 2], [3, 4, 0, 10], GOOD[2]), "word 10 of a block of 10"),
    ],
)
def test_malformed_deltas_are_refused_and_change_nothing(bad: np.ndarray, complaint: str) -> None:
    manifest, base, _ = three_blocks()
    data = base.copy()

    with pytest.raises(MalformedData, match=complaint):
        decode(bad, manifest, data)
    assert data.tobytes() == base.tobytes()
