"""A JSON lines file of prompts and responses, read, checked and tokenized at once.

Shape letters: `E` examples, `S` tokens of all of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import ConfigError

KEYS = ("prompt", "response")
_CHUNK = 4096
"""Texts in one call of the tokenizer: enough to be fast, and the lists of Python integers stay small."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Ragged, packed."""

    tokens: npt.NDArray[np.int32]
    """int32 `[S]`: prompt, response and end token of each example."""
    offsets: npt.NDArray[np.int64]
    """int64 `[E + 1]`: example i is `tokens[offsets[i]:offsets[i + 1]]`."""
    prompt_lengths: npt.NDArray[np.int64]
    """int64 `[E]`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ragged:
    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]


def read_examples(path: Path, tokenizer: Any, max_length: int) -> Examples:
    """Reads objects with the texts `prompt` and `response`; other keys and empty lines are passed over.

    Texts are tokenized as they stand, without special tokens, as the explorer's prompts are; the tokenizer's end token
    follows the response. Raises ConfigError naming file, line and what is allowed.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError("model.tokenizer: it has no end token, so that no example would teach to stop")
    numbers, prompts, responses = _read(path)
    left = _tokenize(path, numbers, prompts, tokenizer)
    right = _tokenize(path, numbers, responses, tokenizer)
    lengths = left.lengths + right.lengths + 1
    _check_lengths(path, numbers, left.lengths, lengths, max_length)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.full(int(offsets[-1]), tokenizer.eos_token_id, dtype=np.int32)
    tokens[_places(offsets[:-1], left.lengths)] = left.tokens
    tokens[_places(offsets[:-1] + left.lengths, right.lengths)] = right.tokens
    return Examples(tokens, offsets, left.lengths)


def _read(path: Path) -> tuple[list[int], list[str], list[str]]:
    numbers: list[int] = []
    prompts: list[str] = []
    responses: list[str] = []
    # is_file is false for FIFOs and devices, which may never end.
    if not path.is_file():
        raise ConfigError(f"buffer.path: {str(path)!r} is no file")
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    prompt, response = _parse(line, f"{path}:{number}")
                    numbers.append(number)
                    prompts.append(prompt)
                    responses.append(response)
    except OSError as error:
        raise ConfigError(f"buffer.path: cannot read {str(path)!r}: {error}") from error
    if not numbers:
        raise ConfigError(f"buffer.path: {path} has no examples; each line is an object with {' and '.join(KEYS)}")
    return numbers, prompts, responses


def _parse(line: bytes, place: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: no JSON: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: a JSON object is needed, not {type(record).__name__}")
    for key in KEYS:
        if not isinstance(record.get(key), str):
            found = f"is {type(record[key]).__name__}" if key in record else f"is missing, there are {sorted(record)}"
            raise ConfigError(f"{place}: {key!r} {found}; each line is an object with the texts {' and '.join(KEYS)}")
    return record[KEYS[0]], record[KEYS[1]]


def _tokenize(path: Path, numbers: Sequence[int], texts: Sequence[str], tokenizer: Any) -> _Ragged:
    # Prompts and, more so, responses repeat in many files, and tokenizing is most of the time that reading takes.
    distinct = list(dict.fromkeys(texts))
    tokens: list[npt.NDArray[np.int32]] = []
    lengths: list[int] = []
    for begin in range(0, len(distinct), _CHUNK):
        chunk = distinct[begin : begin + _CHUNK]
        try:
            encoded = _encode(tokenizer, chunk)
        except Exception as error:  # what a tokenizer raises is its own
            raise _tokenizer_failure(path, numbers, texts, tokenizer, chunk, error) from error
        lengths.extend(map(len, encoded))
        tokens.append(np.fromiter(itertools.chain.from_iterable(encoded), dtype=np.int32))
    order = {text: index for index, text in enumerate(distinct)}
    chosen = np.fromiter((order[text] for text in texts), dtype=np.int64, count=len(texts))
    sizes = np.array(lengths, dtype=np.int64)
    starts = (np.cumsum(sizes) - sizes)[chosen]
    return _Ragged(np.concatenate(tokens)[_places(starts, sizes[chosen])], sizes[chosen])


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    encoded: list[list[int]] = tokenizer(
        texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )["input_ids"]
    return encoded


def _tokenizer_failure(
    path: Path, numbers: Sequence[int], texts: Sequence[str], tokenizer: Any, chunk: Sequence[str], cause: Exception
) -> ConfigError:
    for text in chunk:
        try:
            _encode(tokenizer, [text])
        except Exception as error:  # noqa: BLE001 - as in _tokenize; it is the message
            return ConfigError(
                f"{path}:{numbers[texts.index(text)]}: the tokenizer cannot encode {text[:80]!r}: {error}"
            )
    return ConfigError(f"{path}: the tokenizer failed: {cause}")


def _check_lengths(
    path: Path,
    numbers: Sequence[int],
    prompts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    max_length: int,
) -> None:
    if (prompts == 0).any():
        raise ConfigError(
            f"{path}:{numbers[int((prompts == 0).argmax())]}: the prompt has no token, at least 1 is needed"
        )
    long = lengths > max_length
    if long.any():
        worst = int(long.argmax())
        raise ConfigError(
            f"{path}:{numbers[worst]}: {lengths[worst]} tokens with the end token; model.max_length is {max_length}"
        )


def _places(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ranges starts[i], starts[i] + 1, ... of these lengths, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]))
