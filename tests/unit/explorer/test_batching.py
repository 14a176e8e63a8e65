"""What travels together, and what must not reach the spool."""

from collections import deque

import pytest

from common.config.root import LimitsConfig
from common.errors import WorkflowFailed
from common.wire.experiences import batch_to_wire
from explorer_service.batching import MESSAGE_BYTES, check_group, group_bytes, take_batch
from tests.support.experience_samples import experience, group

LIMITS = LimitsConfig()


def groups(count: int, tokens: int = 6, experiences: int = 2) -> "deque[object]":
    return deque(
        group(f"t{number}", number, [experience(list(range(1, tokens + 1)), 2) for _ in range(experiences)])
        for number in range(count)
    )


def test_groups_go_out_in_order_and_at_most_as_many_as_are_configured() -> None:
    finished = groups(5)
    assert [one.ordinal for one in take_batch(finished, 3, LIMITS)] == [0, 1, 2]
    assert [one.ordinal for one in take_batch(finished, 3, LIMITS)] == [3, 4]
    assert not finished


def test_a_batch_holds_no_more_experiences_than_the_trainer_takes() -> None:
    limits = LimitsConfig(batch_experiences=5)
    assert [len(take_batch(finished, 8, limits)) for finished in [groups(4)]] == [2]  # 2 + 2, a third would make 6


def test_a_batch_fits_into_a_message() -> None:
    limits = LimitsConfig(message_bytes=1 << 20)
    # 4 bytes a token and 5 more a response token: two of 40,000 tokens are 0.72 MB, a second group would not fit.
    finished = groups(2, tokens=40_000)
    assert group_bytes(finished[0]) > 2 * (40_000 * 4 + 39_998 * 5)
    assert len(take_batch(finished, 8, limits)) == 1


def test_the_size_is_never_underestimated() -> None:
    texts = [
        experience([1, 2, 3], 1, prompt_text="ü" * 400, response_text="x" * 700),
        experience([1, 2, 3, 4], 2, prompt_text="", response_text=""),
    ]
    made = group("a task with a long name " * 40, 3, texts, metrics={"length" * 20: 1.0, "b": 2.0})
    assert len(batch_to_wire("e", 1, [made], send_text=True)) <= MESSAGE_BYTES + group_bytes(made)


@pytest.mark.parametrize(
    "broken",
    [
        experience([1, 2, 3], 1, reward=float("nan")),
        experience([1, 2, 3], 1, logprobs=[-0.5, float("nan")]),
        experience([1, 2, 3], 1, mask=[1]),
        experience([1, 2, 3], 3),
    ],
    ids=["nan reward", "nan logprob", "short mask", "no response"],
)
def test_a_group_that_the_trainer_would_refuse_counts_as_failed(broken: object) -> None:
    with pytest.raises(WorkflowFailed, match="'task-9'"):
        check_group(group("task-9", 0, [experience([1, 2], 1), broken]), LIMITS)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (LimitsConfig(batch_experiences=1), "batch_experiences"),
        (LimitsConfig(experience_tokens=5), "experience_tokens"),
    ],
)
def test_a_group_beyond_a_limit_counts_as_failed_and_names_it(limits: LimitsConfig, named: str) -> None:
    with pytest.raises(WorkflowFailed, match=named):
        check_group(groups(1)[0], limits)


def test_a_group_that_fits_no_message_counts_as_failed() -> None:
    with pytest.raises(WorkflowFailed, match="message_bytes"):
        check_group(groups(1, tokens=120_000)[0], LimitsConfig(message_bytes=1 << 20))


def test_a_sound_group_passes() -> None:
    check_group(groups(1)[0], LIMITS)
