"""Examples to imitate, from a JSON lines file to the batches of supervised fine-tuning.

Shape letters: `E` examples in the file, `N` of them in a batch, `T` tokens of a batch, `R` of them after the prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from common.errors import CheckpointInvalid
from trainer_service.buffer.example_file import Examples, read_examples
from trainer_service.engine.base import TrainBatch


class ExampleBuffer:
    """Iterates over the batches of a file, in an order that is a pure function of the seed and the position.

    Epochs follow each other without a gap: a batch may span two, and only the very last one may be smaller. Everything
    is read and tokenized at once, at construction. Raises ConfigError naming file, line and what is allowed.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Any,
        batch_size: int,
        *,
        shuffle: bool,
        epochs: int | None,
        seed: int,
        max_length: int,
    ) -> None:
        """`epochs` None: endless. An example has at most `max_length` tokens, its end token included."""
        self._examples = read_examples(path, tokenizer, max_length)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._count = self._examples.prompt_lengths.size
        self._end = None if epochs is None else epochs * self._count
        self._consumed = 0
        self._fingerprint = _fingerprint(self._examples)
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Examples in the file."""
        return self._count

    def __iter__(self) -> Iterator[TrainBatch]:
        """Itself: there is one cursor."""
        return self

    def __next__(self) -> TrainBatch:
        """The next batch."""
        end = self._consumed + self._batch_size
        if self._end is not None:
            end = min(end, self._end)
        if end <= self._consumed:
            raise StopIteration
        chosen = self._at(self._consumed, end)
        self._consumed = end
        return _assemble(self._examples, chosen)

    def state(self) -> dict[str, Any]:
        """The cursor, for a checkpoint: what was given out so far."""
        return {"consumed": self._consumed, "fingerprint": self._fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` was taken. Raises CheckpointInvalid when the file's examples are not the same."""
        consumed = state.get("consumed")
        if type(consumed) is not int or consumed < 0:
            raise CheckpointInvalid(f"the cursor of the examples must be a whole number from 0, not {consumed!r}")
        if state.get("fingerprint") != self._fingerprint:
            raise CheckpointInvalid(
                "`buffer.path` has other examples, or another tokenizer, than when the checkpoint was written: its "
                "cursor means nothing there"
            )
        self._consumed = consumed

    def _at(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The examples at these positions of the endless sequence of epochs."""
        parts: list[npt.NDArray[np.int64]] = []
        while begin < end:
            epoch, place = divmod(begin, self._count)
            taken = min(end - begin, self._count - place)
            parts.append(self._epoch_order(epoch)[place : place + taken])
            begin += taken
        return np.concatenate(parts)

    def _epoch_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            order = np.arange(self._count, dtype=np.int64)
            if self._shuffle:
                order = np.random.default_rng([self._seed, epoch]).permutation(order)
            self._order = (epoch, order)
        return self._order[1]


def _fingerprint(examples: Examples) -> str:
    state = xxhash.xxh3_128()
    for array in (examples.tokens, examples.offsets, examples.prompt_lengths):
        state.update(array.data)
    return state.hexdigest()


def _assemble(examples: Examples, chosen: npt.NDArray[np.int64]) -> TrainBatch:
    starts = examples.offsets[chosen]
    lengths = examples.offsets[chosen + 1] - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    prompts = examples.prompt_lengths[chosen]
    after = int((lengths - prompts).sum())
    return TrainBatch(
        tokens=torch.from_numpy(examples.tokens[places]),
        token_offsets=torch.from_numpy(offsets),
        prompt_lengths=torch.from_numpy(prompts),
        action_mask=torch.ones(after, dtype=torch.bool),
        logprobs=torch.zeros(after),
        rewards=torch.zeros(chosen.size),
        group_index=torch.arange(chosen.size),
    )
