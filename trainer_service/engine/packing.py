"""From the ragged batch to padded micro-batches, without a Python loop over tokens or sequences.

Shape letters: `N` sequences, `T` tokens of all of them, `R` tokens after the prompts, `A` of those action tokens, `B`
sequences of a micro-batch, `L` its padded length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch

from common.errors import MalformedData
from trainer_service.engine.base import TrainBatch


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """A batch seen through its action tokens, which lie in the order of their sequences."""

    tokens: torch.Tensor
    """int64 `[T]`."""
    starts: torch.Tensor
    """int64 `[N]`: where each sequence begins in `tokens`."""
    lengths: torch.Tensor
    """int64 `[N]`."""
    prompt_lengths: torch.Tensor
    """int64 `[N]`."""
    sequence: torch.Tensor
    """int64 `[A]`: the sequence of each action token."""
    position: torch.Tensor
    """int64 `[A]`: its place in that sequence, at least 1."""
    action_starts: torch.Tensor
    """int64 `[N + 1]`: sequence i has the action tokens from `action_starts[i]` to `action_starts[i + 1]`."""
    behaviour_logprobs: torch.Tensor
    """float32 `[A]`."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """What one forward and backward pass takes. `A` here: the action tokens of its own sequences."""

    input_ids: torch.Tensor
    """int64 `[B, L]`, padded on the right with token 0: under a causal mask nothing real sees the padding. A sequence's
    last token is left out, for nothing is predicted from it."""
    rows: torch.Tensor
    """int64 `[A]`: places in the flattened `[B * L]` from which the action tokens are predicted."""
    targets: torch.Tensor
    """int64 `[A]`: the action tokens."""
    index: torch.Tensor
    """int64 `[A]`: where they lie among the whole batch's action tokens."""
    position_ids: torch.Tensor | None = None
    """int64 `[B, L]`, where a row is not one sequence from its start."""
    attention_mask: torch.Tensor | None = None
    """bool `[B, 1, L, L]`, where it is not the causal one."""

    def to(self, device: torch.device) -> MicroBatch:
        """The same on the device."""
        moved: dict[str, Any] = {
            field.name: None if value is None else value.to(device, non_blocking=True)
            for field in fields(self)
            for value in (getattr(self, field.name),)
        }
        return MicroBatch(**moved)


def pack(batch: TrainBatch, vocabulary: int) -> PackedBatch:
    """Checks that the parts of a batch fit together, and finds its action tokens.

    Raises MalformedData. A token outside the vocabulary is found here, for on CUDA it would end the process.
    """
    offsets = batch.token_offsets.long()
    lengths = offsets.diff()
    prompts = batch.prompt_lengths.long()
    _check(batch, offsets, lengths, prompts, vocabulary)
    responses = lengths - prompts
    response_starts = torch.cat([offsets.new_zeros(1), responses.cumsum(0)])
    chosen = batch.action_mask.bool().nonzero().squeeze(1)
    sequence = torch.repeat_interleave(responses)[chosen]
    counts = torch.bincount(sequence, minlength=lengths.numel())
    return PackedBatch(
        tokens=batch.tokens.long(),
        starts=offsets[:-1],
        lengths=lengths,
        prompt_lengths=prompts,
        sequence=sequence,
        position=chosen - response_starts[sequence] + prompts[sequence],
        action_starts=torch.cat([offsets.new_zeros(1), counts.cumsum(0)]),
        behaviour_logprobs=batch.logprobs.float()[chosen],
    )


def _check(
    batch: TrainBatch, offsets: torch.Tensor, lengths: torch.Tensor, prompts: torch.Tensor, vocabulary: int
) -> None:
    count = lengths.numel()
    if count < 1 or int(offsets[0]) != 0 or int(offsets[-1]) != batch.tokens.numel():
        raise MalformedData(f"{count} sequences with offsets that do not cover the {batch.tokens.numel()} tokens")
    if not prompts.numel() == batch.rewards.numel() == batch.group_index.numel() == count:
        raise MalformedData(f"prompt lengths, rewards and groups are not those of {count} sequences")
    if bool(((prompts < 1) | (prompts >= lengths)).any()):
        raise MalformedData("a prompt must have at least one token and leave at least one after it")
    after = int((lengths - prompts).sum())
    if not batch.action_mask.numel() == batch.logprobs.numel() == after:
        raise MalformedData(f"action mask and logprobs are not those of the {after} tokens after the prompts")
    if int(batch.tokens.min()) < 0 or int(batch.tokens.max()) >= vocabulary:
        raise MalformedData(f"a token is outside the model's vocabulary of {vocabulary}")


def micro_batches(packed: PackedBatch, sequences: torch.Tensor, max_tokens: int) -> Iterator[MicroBatch]:
    """Splits the sequences (int64, indices into the batch) into micro-batches of at most `max_tokens`, padding included.

    They are sorted by length, the longest first: little is padded, and what needs most memory comes first. A sequence
    longer than `max_tokens` makes a micro-batch alone. Sequences without an action token are left out.
    """
    useful = sequences[packed.action_starts.diff()[sequences] > 0]
    inputs = packed.lengths[useful] - 1
    order = inputs.argsort(descending=True, stable=True)
    useful, longest = useful[order], inputs[order].tolist()
    begin = 0
    while begin < useful.numel():
        end = begin + max(1, max_tokens // longest[begin])
        yield _micro_batch(packed, useful[begin:end], longest[begin])
        begin = end


def _micro_batch(packed: PackedBatch, sequences: torch.Tensor, width: int) -> MicroBatch:
    starts = packed.starts[sequences]
    columns = torch.arange(width)
    inside = columns < (packed.lengths[sequences] - 1).unsqueeze(1)
    places = torch.where(inside, starts.unsqueeze(1) + columns, 0)
    first = packed.action_starts[sequences]
    counts = packed.action_starts[sequences + 1] - first
    row = torch.repeat_interleave(counts)
    # Of the ranges first[i], first[i] + 1, ... one after the other: each range's start, and the place within it.
    index = (first - (counts.cumsum(0) - counts))[row] + torch.arange(row.numel())
    position = packed.position[index]
    return MicroBatch(
        input_ids=torch.where(inside, packed.tokens[places], 0),
        rows=row * width + position - 1,
        targets=packed.tokens[starts[row] + position],
        index=index,
    )
