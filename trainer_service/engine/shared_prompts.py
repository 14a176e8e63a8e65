"""Micro-batches in which a prompt that several sequences have in common is computed once.

A row holds a prompt and, behind it, the responses to it: `[prompt | response 1 | response 2 | ... | padding]`. Each
response sees the prompt and itself, and its positions go on after the prompt's, so every token gets the numbers that it
would get in a row of its own. With groups of G short responses that saves most of the prompts' work; with long ones the
row's square attention costs more than it saves, and plain rows are used.

Shape letters: `S` sequences of a micro-batch, `B` rows, `L` padded length of a row, `P` tokens of a prompt, `A` action tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainer_service.engine.packing import MicroBatch, PackedBatch


def shared_micro_batches(
    packed: PackedBatch, sequences: torch.Tensor, max_tokens: int, hidden_size: int
) -> Iterator[MicroBatch] | None:
    """Micro-batches of at most `max_tokens`, padding included; None where plain rows cost less.

    The estimate counts a token's linear layers as 1 and its attention over L keys as L / (6 hidden_size), which is their
    ratio in a block of 12 hidden_size^2 weights.
    """
    useful = sequences[packed.action_starts.diff()[sequences] > 0]
    if useful.numel() == 0:
        return None
    prompt = _prompt_of(packed, useful)
    order = prompt.argsort(stable=True)
    useful, prompt = useful[order], prompt[order]
    extra = packed.lengths[useful] - packed.prompt_lengths[useful] - 1
    first_of_row = torch.cat([prompt.new_ones(1, dtype=torch.bool), prompt[1:] != prompt[:-1]])
    row = first_of_row.cumsum(0) - 1
    widths = packed.prompt_lengths[useful[first_of_row]].index_add(0, row, extra)
    longest = int(widths.max())
    plain = int((packed.lengths[useful] - 1).max())
    if _cost(widths.numel() * longest, longest, hidden_size) >= _cost(useful.numel() * plain, plain, hidden_size):
        return None
    return _split(packed, useful, row, widths, max_tokens)


def _cost(tokens: int, length: int, hidden_size: int) -> float:
    return tokens * (1 + length / (6 * hidden_size))


def _prompt_of(packed: PackedBatch, sequences: torch.Tensor) -> torch.Tensor:
    """int64 `[S]`: sequences with the same prompt have the same number."""
    lengths = packed.prompt_lengths[sequences]
    columns = torch.arange(int(lengths.max()))
    inside = columns < lengths.unsqueeze(1)
    places = torch.where(inside, packed.starts[sequences].unsqueeze(1) + columns, 0)
    prompts = torch.where(inside, packed.tokens[places], -1)
    numbers: torch.Tensor = torch.unique(prompts, dim=0, return_inverse=True)[1]
    return numbers


def _split(
    packed: PackedBatch, sequences: torch.Tensor, row: torch.Tensor, widths: torch.Tensor, max_tokens: int
) -> Iterator[MicroBatch]:
    """Rows in order of their width, the widest first, as many at once as the budget allows."""
    by_width = widths.argsort(descending=True, stable=True)
    sorted_widths = widths[by_width].tolist()
    begin = 0
    while begin < by_width.numel():
        end = begin + max(1, max_tokens // sorted_widths[begin])
        rows = by_width[begin:end]
        new_row = torch.full_like(widths, -1)
        new_row[rows] = torch.arange(rows.numel())
        members = new_row[row] >= 0
        yield _micro_batch(packed, sequences[members], new_row[row[members]], rows.numel(), sorted_widths[begin])
        begin = end


def _micro_batch(packed: PackedBatch, sequences: torch.Tensor, row: torch.Tensor, rows: int, width: int) -> MicroBatch:
    order = row.argsort(stable=True)
    sequences, row = sequences[order], row[order]
    prompts = packed.prompt_lengths[sequences]
    starts = packed.starts[sequences]
    # The last token of a response is left out, for nothing is predicted from it.
    extra = packed.lengths[sequences] - prompts - 1
    first_of_row = torch.cat([row.new_ones(1, dtype=torch.bool), row[1:] != row[:-1]])
    before = extra.cumsum(0) - extra
    offset = prompts + before - before[first_of_row][row]

    input_ids = torch.zeros(rows, width, dtype=torch.int64)
    position_ids = torch.zeros(rows, width, dtype=torch.int64)
    # Of the padding: -1, which sees itself alone.
    segment = torch.full((rows, width), -1, dtype=torch.int64)

    owner, step = _ranges(prompts[first_of_row])
    heads = sequences[first_of_row]
    input_ids[owner, step] = packed.tokens[packed.starts[heads][owner] + step]
    position_ids[owner, step] = step
    segment[owner, step] = 0

    owner, step = _ranges(extra)
    column = offset[owner] + step
    input_ids[row[owner], column] = packed.tokens[starts[owner] + prompts[owner] + step]
    position_ids[row[owner], column] = prompts[owner] + step
    segment[row[owner], column] = owner + 1

    first = packed.action_starts[sequences]
    owner, step = _ranges(packed.action_starts[sequences + 1] - first)
    index = first[owner] + step
    position = packed.position[index]
    into_response = position - 1 - prompts[owner]
    seen_from = torch.where(into_response < 0, position - 1, offset[owner] + into_response)
    return MicroBatch(
        input_ids=input_ids,
        rows=row[owner] * width + seen_from,
        targets=packed.tokens[starts[owner] + position],
        index=index,
        position_ids=position_ids,
        attention_mask=_mask(segment),
    )


def _ranges(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For counts `[S]`: whose turn it is and how far along, `[sum]` each; `[2, 1]` gives `[0, 0, 1]` and `[0, 1, 0]`."""
    owner = torch.repeat_interleave(counts)
    return owner, torch.arange(owner.numel()) - (counts.cumsum(0) - counts)[owner]


def _mask(segment: torch.Tensor) -> torch.Tensor:
    """Who sees whom: bool `[B, 1, L, L]`."""
    keys, queries = segment.unsqueeze(1), segment.unsqueeze(2)
    causal = torch.ones(segment.shape[1], segment.shape[1], dtype=torch.bool).tril()
    return (causal & ((keys == queries) | ((keys == 0) & (queries > 0)))).unsqueeze(1)
