"""Ragged columnar batches of experiences, and their bytes (`ExperienceBatch.columns` in experience.proto).

Shape letters: `N` experiences, `T` tokens of all of them together, `R` tokens after the prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from common.config.root import LimitsConfig
from common.errors import MalformedData
from common.experience.checks import check_columns
from common.experience.experience import Experience, FloatArray, IntArray, MaskArray
from common.experience.header import DTYPES, Column, build_header, parse_header

LongArray = npt.NDArray[np.int64]
Buffer: TypeAlias = bytes | Column


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Experiences, one array a property. Arrays that come from `decode` are read-only views of its bytes."""

    tokens: IntArray
    """int32 `[T]`: prompt and response of experience 0, then of 1, ..."""
    token_offsets: LongArray
    """int64 `[N + 1]`: experience i is `tokens[token_offsets[i]:token_offsets[i + 1]]`. Example: `[0, 6, 10]`."""
    prompt_lengths: IntArray
    """int32 `[N]`."""
    action_mask: MaskArray
    """uint8 `[R]`: 1 for tokens that the policy sampled; the tokens after each prompt alone, hence R, not T."""
    logprobs: FloatArray
    """float32 `[R]`: behaviour logprobs; 0 where `action_mask` is 0."""
    rewards: FloatArray
    """float32 `[N]`."""
    oldest_versions: LongArray
    """int64 `[N]`: policy step of the oldest token's weights."""
    newest_versions: LongArray
    """int64 `[N]`: policy step of the newest token's weights."""
    truncated: MaskArray
    """uint8 `[N]`: 1 when the length limit ended it."""

    @classmethod
    def from_experiences(cls, experiences: Sequence[Experience]) -> Columns:
        """Columns of these experiences, at least one.

        Raises MalformedData when one of them could not pass `decode` on the other side (a NaN reward, lengths that
        differ, ...): better here than in a batch that is spooled and refused for ever.
        """
        return cls(**_checked(memoryview(joined(gather(experiences))), None, None))

    @property
    def experience_count(self) -> int:
        """`N`."""
        return self.rewards.size

    @property
    def response_offsets(self) -> LongArray:
        """int64 `[N + 1]`: `action_mask` and `logprobs` of experience i lie between items i and i + 1 of it."""
        return self.token_offsets - _offsets(self.prompt_lengths)

    def slice(self, start: int, stop: int) -> Columns:
        """Experiences `start` to `stop - 1`, as views; only the offsets are copied."""
        first_token, end_token = self.token_offsets[start], self.token_offsets[stop]
        responses = self.response_offsets
        return self._part((start, stop), (first_token, end_token), (responses[start], responses[stop]))

    def split(self, counts: Sequence[int]) -> Iterator[Columns]:
        """Runs of so many experiences, one after the other, as `slice` gives them."""
        bounds = _offsets(np.array(counts, np.int64))
        tokens, responses = self.token_offsets[bounds].tolist(), self.response_offsets[bounds].tolist()
        edges = zip(bounds.tolist(), tokens, responses, strict=True)
        for (start, token, response), (stop, end_token, end_response) in pairwise(edges):
            yield self._part((start, stop), (token, end_token), (response, end_response))

    def _part(self, rows: tuple[int, int], tokens: tuple[int, int], responses: tuple[int, int]) -> Columns:
        items, after_prompt = slice(*rows), slice(*responses)
        return Columns(
            tokens=self.tokens[slice(*tokens)],
            token_offsets=self.token_offsets[rows[0] : rows[1] + 1] - tokens[0],
            prompt_lengths=self.prompt_lengths[items],
            action_mask=self.action_mask[after_prompt],
            logprobs=self.logprobs[after_prompt],
            rewards=self.rewards[items],
            oldest_versions=self.oldest_versions[items],
            newest_versions=self.newest_versions[items],
            truncated=self.truncated[items],
        )

    def select(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> Columns:
        """The experiences at these indices, in this order, copied; an index may appear again."""
        chosen = np.asarray(indices, np.int64)
        token_index, token_offsets = _gather(self.token_offsets, chosen)
        response_index, _ = _gather(self.response_offsets, chosen)
        return Columns(
            tokens=self.tokens[token_index],
            token_offsets=token_offsets,
            prompt_lengths=self.prompt_lengths[chosen],
            action_mask=self.action_mask[response_index],
            logprobs=self.logprobs[response_index],
            rewards=self.rewards[chosen],
            oldest_versions=self.oldest_versions[chosen],
            newest_versions=self.newest_versions[chosen],
            truncated=self.truncated[chosen],
        )

    def to_experiences(self) -> list[Experience]:
        """One value an experience, with views of these arrays; texts are empty."""
        return list(self._experiences())

    def _experiences(self) -> Iterator[Experience]:
        responses = self.response_offsets.tolist()
        tokens = self.token_offsets.tolist()
        for index in range(self.experience_count):
            span = slice(responses[index], responses[index + 1])
            yield Experience(
                tokens=self.tokens[tokens[index] : tokens[index + 1]],
                prompt_length=int(self.prompt_lengths[index]),
                action_mask=self.action_mask[span],
                logprobs=self.logprobs[span],
                reward=float(self.rewards[index]),
                oldest_version=int(self.oldest_versions[index]),
                newest_version=int(self.newest_versions[index]),
                truncated=bool(self.truncated[index]),
            )


def concat(parts: Sequence[Columns]) -> Columns:
    """All experiences of these columns, in order, copied. Needs at least one part."""
    arrays = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(Columns)
        if column.name != "token_offsets"
    }
    # Every part's offsets start at 0: its items move by the tokens of the parts before it.
    ends = np.concatenate([np.zeros(1, np.int64), *(part.token_offsets[1:] for part in parts)])
    moved = _offsets(np.array([part.tokens.size for part in parts]))[:-1]
    ends[1:] += np.repeat(moved, [part.rewards.size for part in parts])
    return Columns(token_offsets=ends, **arrays)


def encode(columns: Columns) -> bytes:
    """The safetensors file image of these columns: one copy of the data."""
    arrays = {name: np.ascontiguousarray(getattr(columns, name), dtype) for name, dtype in DTYPES.items()}
    sizes = {name: array.size for name, array in arrays.items()}
    return b"".join([build_header(sizes), *(arrays[name].data for name in DTYPES)])


def gather(experiences: Sequence[Experience]) -> list[Buffer]:
    """What joins to the safetensors file image of these experiences, at least one; long arrays as they are, uncopied.

    Checks what would shift the columns against each other; `check_image` the rest. Raises MalformedData.
    """
    if not experiences:
        raise MalformedData("a batch without experiences")
    tokens = [experience.tokens for experience in experiences]
    masks = [experience.action_mask for experience in experiences]
    logprobs = [experience.logprobs for experience in experiences]
    lengths = np.array([len(row) for row in tokens], np.int64)
    prompts = np.array([experience.prompt_length for experience in experiences], np.int32)
    _check_rows(lengths - prompts, [len(row) for row in masks], [len(row) for row in logprobs])
    responses = int(lengths.sum() - prompts.sum(dtype=np.int64))
    pieces: dict[str, list[Column]] = {
        "token_offsets": [_offsets(lengths)],
        "oldest_versions": [np.array([experience.oldest_version for experience in experiences], np.int64)],
        "newest_versions": [np.array([experience.newest_version for experience in experiences], np.int64)],
        "tokens": _rows(tokens, "tokens"),
        "prompt_lengths": [prompts],
        "logprobs": _rows(logprobs, "logprobs"),
        "rewards": [np.array([experience.reward for experience in experiences], np.float32)],
        "action_mask": _rows(masks, "action_mask"),
        "truncated": [np.array([experience.truncated for experience in experiences], np.uint8)],
    }
    sizes = dict.fromkeys(DTYPES, lengths.size) | {
        "token_offsets": lengths.size + 1,
        "tokens": int(lengths.sum()),
        "logprobs": responses,
        "action_mask": responses,
    }
    return [build_header(sizes), *chain.from_iterable(pieces[name] for name in DTYPES)]


def joined(pieces: Sequence[Buffer]) -> bytearray:
    """The bytes of all pieces, one after the other: one copy."""
    try:
        return bytearray().join(pieces)  # type: ignore[arg-type]  # arrays are buffers
    except TypeError:  # one has gaps between its items, which asking each beforehand would cost more
        plain = [np.ascontiguousarray(piece) if isinstance(piece, np.ndarray) else piece for piece in pieces]
        return bytearray().join(plain)  # type: ignore[arg-type]  # as above


def check_image(data: memoryview) -> None:
    """Raises what `decode` would raise for these bytes, limits aside."""
    _checked(data, None, None)


def decode(data: bytes | memoryview, limits: LimitsConfig) -> Columns:
    """The columns in a peer's or a file's bytes, as views of them, aligned or not: nothing is copied.

    Raises LimitExceeded (`limits.batch_experiences`, `limits.experience_tokens`, the header's size) or MalformedData.
    """
    return Columns(**_checked(memoryview(data).cast("B"), limits.batch_experiences, limits.experience_tokens))


def _checked(image: memoryview, max_experiences: int | None, max_tokens: int | None) -> dict[str, Column]:
    arrays = parse_header(image)
    check_columns(arrays, max_experiences, max_tokens)
    return arrays


def _check_rows(responses: LongArray, masks: list[int], logprobs: list[int]) -> None:
    fits = (responses == masks) & (responses == logprobs)
    if not fits.all():
        index = int(fits.argmin())
        raise MalformedData(
            f"experience {index} has {responses[index]} tokens after its prompt, {masks[index]} items of action_mask, "
            f"{logprobs[index]} logprobs"
        )


def _rows(rows: list[Column], name: str) -> list[Column]:
    """The rows, converted where one has another dtype (of the same kind)."""
    dtype = DTYPES[name]
    # numpy keeps one object for each of these dtypes; another one that is equal only takes the slow way.
    if all([row.dtype is dtype for row in rows]):  # noqa: C419 - twice as fast as a generator
        return rows
    return [row.astype(dtype, casting="same_kind", copy=False) for row in rows]


def _offsets(lengths: npt.NDArray[np.integer]) -> LongArray:
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _gather(offsets: LongArray, chosen: LongArray) -> tuple[LongArray, LongArray]:
    """Index of every item of the chosen ragged rows, and the offsets of the result."""
    lengths = np.diff(offsets)[chosen]
    gathered = _offsets(lengths)
    return np.arange(gathered[-1]) + np.repeat(offsets[:-1][chosen] - gathered[:-1], lengths), gathered
