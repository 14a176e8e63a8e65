"""What the columns of a batch must satisfy, whoever made them.

Shape letters: `N` experiences, `T` tokens of all of them together, `R` tokens after the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.errors import LimitExceeded, MalformedData
from common.experience.header import Column

_lowest = np.minimum.reduce
_highest = np.maximum.reduce
_all = np.logical_and.reduce

LOGPROB_TOLERANCE = 1e-4
"""How far above 0 a logprob may be: float32 log-softmax of a token with probability 1 ends a few 1e-6 above it."""


def check_columns(columns: Mapping[str, Column], max_experiences: int | None, max_tokens: int | None) -> None:
    """Refuses one-dimensional columns that contradict each other, hold impossible values or are over a limit.

    Keys and dtypes are those of `header.DTYPES`; None: no limit. Each column is read once or twice, nothing is copied;
    `ufunc.reduce` takes half the time of the methods of the same names on a usual batch.
    Raises MalformedData or LimitExceeded.
    """
    count = columns["rewards"].size
    if max_experiences is not None and count > max_experiences:
        raise LimitExceeded(f"{count} experiences in a batch, limits.batch_experiences is {max_experiences}")
    _check_sizes(columns, count)
    lengths = _checked_lengths(columns)
    if max_tokens is not None and _highest(lengths) > max_tokens:
        raise LimitExceeded(f"{_highest(lengths)} tokens in an experience, limits.experience_tokens is {max_tokens}")
    _check_values(columns)


def _check_sizes(columns: Mapping[str, Column], count: int) -> None:
    if count == 0:
        raise MalformedData("a batch without experiences")
    for name in ("prompt_lengths", "oldest_versions", "newest_versions", "truncated"):
        if columns[name].size != count:
            raise MalformedData(f"{columns[name].size} {name} for {count} rewards")
    if columns["token_offsets"].size != count + 1:
        raise MalformedData(f"{columns['token_offsets'].size} token_offsets for {count} experiences")
    if columns["logprobs"].size != columns["action_mask"].size:
        raise MalformedData(f"{columns['logprobs'].size} logprobs for an action_mask of {columns['action_mask'].size}")


def _checked_lengths(columns: Mapping[str, Column]) -> Column:
    offsets, prompts, total = columns["token_offsets"], columns["prompt_lengths"], columns["tokens"].size
    # Compared before they are subtracted: hostile int64 values would wrap.
    if offsets[0] != 0 or offsets[-1] != total or not _all(offsets[:-1] <= offsets[1:]):
        raise MalformedData(f"token_offsets do not rise from 0 to the {total} tokens")
    lengths: Column = offsets[1:] - offsets[:-1]
    if _lowest(prompts) <= 0 or not _all(prompts < lengths):
        raise MalformedData("a prompt_length is not between 1 and the experience's length - 1")
    responses = total - int(np.add.reduce(prompts, dtype=np.int64))
    if columns["action_mask"].size != responses:
        raise MalformedData(f"{columns['action_mask'].size} items of action_mask for {responses} tokens after prompts")
    return lengths


def _check_values(columns: Mapping[str, Column]) -> None:
    if _lowest(columns["tokens"]) < 0:
        raise MalformedData("a token id is negative")
    for name in ("action_mask", "truncated"):
        if _highest(columns[name]) > 1:
            raise MalformedData(f"{name} has a value other than 0 and 1")
    if not _all(np.isfinite(columns["rewards"])):
        raise MalformedData("a reward is not finite")
    # min and max hand NaN on. Where the mask is 0 a logprob is 0, so the bounds hold for every item.
    lowest, highest = _lowest(columns["logprobs"]), _highest(columns["logprobs"])
    if not (np.isfinite(lowest) and highest <= LOGPROB_TOLERANCE):
        raise MalformedData(f"logprobs lie between {lowest} and {highest}: not finite, or above 0")
    oldest, newest = columns["oldest_versions"], columns["newest_versions"]
    if _lowest(oldest) < 0 or not _all(oldest <= newest):
        raise MalformedData("an oldest_version is negative or above its newest_version")
