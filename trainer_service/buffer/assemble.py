"""Groups from the buffer become the batch of one train step.

Shape letters: `N` sequences, `T` tokens of all of them, `R` tokens after the prompts, `G` groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from common.experience.columns import concat
from common.experience.received import ReceivedGroup
from trainer_service.engine.base import TrainBatch


def assemble(groups: Sequence[ReceivedGroup], temperature: float) -> TrainBatch:
    """Packs the groups, at least one, in their order. The tensors own their memory: nothing refers to received bytes."""
    # `concat` copies, also a single group: the received arrays are read-only, which torch cannot express.
    columns = concat([group.columns for group in groups])
    counts = [group.columns.experience_count for group in groups]
    return TrainBatch(
        tokens=torch.from_numpy(columns.tokens),
        token_offsets=torch.from_numpy(columns.token_offsets),
        prompt_lengths=torch.from_numpy(columns.prompt_lengths.astype(np.int64)),
        action_mask=torch.from_numpy(columns.action_mask.view(np.bool_)),
        logprobs=torch.from_numpy(columns.logprobs),
        rewards=torch.from_numpy(columns.rewards),
        group_index=torch.from_numpy(np.repeat(np.arange(len(groups), dtype=np.int64), counts)),
        temperature=temperature,
    )
