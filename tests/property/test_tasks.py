"""Orders and transcripts, for any lengths and interleavings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from explorer_service.engine.base import Completion
from explorer_service.tasksets import TaskOrder
from explorer_service.workflows import Transcript
from explorer_service.workflows.rollout import check_rollout

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)


@given(length=st.integers(1, 60), epochs=st.integers(1, 3), seed=st.integers(0, 2**63 - 1), shuffle=st.booleans())
def test_every_epoch_holds_each_task_once(length: int, epochs: int, seed: int, shuffle: bool) -> None:
    order = TaskOrder(length, shuffle, epochs, seed)
    for epoch in range(epochs):
        span = range(epoch * length, (epoch + 1) * length)
        assert sorted(order.position(n) for n in span) == list(range(length))
    assert order.total == epochs * length


@given(
    prompt=TOKENS,
    pieces=st.lists(st.tuples(st.booleans(), TOKENS, st.integers(0, 99)), max_size=6),
    last=TOKENS,
)
def test_a_transcript_keeps_every_token_and_trains_the_policys_alone(
    prompt: list[int], pieces: list[tuple[bool, list[int], int]], last: list[int]
) -> None:
    transcript = Transcript(prompt)
    tokens, mask, logprobs, versions = list(prompt), [], [], []
    for written, piece, version in [*pieces, (True, last, 50)]:
        assert transcript.tokens == tokens
        tokens += piece
        mask += [int(written)] * len(piece)
        values = [-float(token % 7) for token in piece] if written else [0.0] * len(piece)
        logprobs += values
        if written:
            versions.append(version)
            arrays = np.array(piece, np.int32), np.array(values, np.float32)
            transcript.add_completion(Completion(*arrays, version, version, 1, truncated=False, text=""))
        else:
            transcript.add_observation(piece)
    (experience,) = check_rollout(transcript.finish(0.5)).experiences
    assert experience.tokens.tolist() == tokens
    assert experience.prompt_length == len(prompt)
    assert experience.action_mask.tolist() == mask
    assert experience.logprobs.tolist() == logprobs
    assert (experience.oldest_version, experience.newest_version) == (min(versions), max(versions))
