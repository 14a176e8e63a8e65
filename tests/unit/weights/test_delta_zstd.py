import numpy as np
import pytest
import torch
import zstandard

from common.errors import MalformedData
from common.weights.delta import BLOCK_WORDS, apply, encode
from common.weights.delta_zstd import compress, decompress
from common.weights.manifest import Manifest
from tests.support.weights import lay_out, sample_tensors


def one_ulp_steps() -> tuple[Manifest, np.ndarray, np.ndarray]:
    """200,000 words of bf16, of which every 250th moves by one bit pattern up or down, and some by much more."""
    generator = torch.Generator().manual_seed(3)
    manifest, data = lay_out({"w": torch.randn(200_000, generator=generator).bfloat16()})
    new = data.numpy().copy()
    words = new.view(np.uint16)
    words[::500] += 1
    words[250::500] -= 1
    words[7::20_000] ^= 0x9F3A
    return manifest, data.numpy(), new


def packed(raw: bytes) -> np.ndarray:
    return np.frombuffer(zstandard.ZstdCompressor().compress(raw), dtype=np.uint8)


def test_what_was_compressed_arrives_bit_by_bit_and_the_base_is_only_read() -> None:
    manifest, base, new = one_ulp_steps()
    encoded = encode(base, new, manifest)
    assert encoded is not None
    compressed = compress(encoded, manifest, base)
    data = base.copy()

    parts = decompress(compressed, manifest, data)
    assert data.tobytes() == base.tobytes()
    apply(parts, data)
    assert data.tobytes() == new.tobytes()
    # Absolute values: once more changes nothing.
    apply(parts, data)
    assert data.tobytes() == new.tobytes()
    assert compressed.size < encoded.size / 4


def test_mixed_dtypes_arrive_bit_by_bit() -> None:
    tensors = sample_tensors()
    manifest, base = lay_out(tensors)
    _, new = lay_out({**tensors, "c.weight": tensors["c.weight"].roll(0) * torch.eye(5, 11).sub(1).abs()})
    encoded = encode(base.numpy(), new.numpy(), manifest)
    assert encoded is not None
    data = base.numpy().copy()

    apply(decompress(compress(encoded, manifest, data), manifest, data), data)

    assert data.tobytes() == new.numpy().tobytes()


def test_equal_deltas_compress_to_equal_bytes() -> None:
    manifest, base, new = one_ulp_steps()
    encoded = encode(base, new, manifest)
    assert encoded is not None
    assert compress(encoded, manifest, base).tobytes() == compress(encoded, manifest, base).tobytes()


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (np.frombuffer(b"nothing of zstd's", dtype=np.uint8), "zstd"),
        (np.empty(0, dtype=np.uint8), "zstd"),
        (packed(bytes(16))[:-1], "zstd"),
        (packed(bytes(16)).repeat(2), "zstd"),
        # A bomb: 400,000 bytes and more are claimed for a version of 400,000.
        (packed(bytes(400_000)), "claims 400000 bytes"),
        (packed(bytes(1 << 30)), "claims 1073741824 bytes"),
        (packed(bytes(15)), "too short"),
        # Two changes in the first block, the second of which lies no further than the first.
        (packed(np.array([2, 0, 0, 0], "<u4").tobytes() + bytes([5, 0, 0, 0]) + bytes(4)), "do not increase"),
        # The last block has 200,000 - 3 * 65,536 = 3,392 words.
        (packed(np.array([0, 0, 0, 1], "<u4").tobytes() + bytes([0x40, 0x0D]) + bytes(2)), "word 3392 of a block"),
    ],
)
def test_malformed_compressed_deltas_are_refused(bad: np.ndarray, complaint: str) -> None:
    manifest, base, _ = one_ulp_steps()
    assert manifest.total_bytes == 400_000
    assert BLOCK_WORDS == 65_536

    with pytest.raises(MalformedData, match=complaint):
        decompress(bad, manifest, base)


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    manifest, base, _ = one_ulp_steps()
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    stream = compressor.compress(bytes(16)) + compressor.flush()

    with pytest.raises(MalformedData, match="claims -1 bytes"):
        decompress(np.frombuffer(stream, dtype=np.uint8), manifest, base)
