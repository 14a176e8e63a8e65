"""Settings under which both sides would wait for each other for ever, found in closed form.

What is found here hangs for certain; what passes may still hang by timing, which the simulator looks for. Letters:
`B` groups a trainer step, `E` groups an explore step, `K` explorers, `T` and `M` intervals, `n` offset, `S` staleness,
`Q` groups that may be granted and not trained. Under fixed, explorers pass their boundary k (k >= 1) with
`G(k) = (n + kM) E K` groups started in all; between boundaries k and k + 1 they hold the version that they took at
boundary k (k = 0: the initial weights). Of what is made on version v nothing is trained after step v + 1 + S: it is too stale.

No version is skipped, so version kT is held after boundary k, and the trainer stops at step (k + 2)T until (k + 1)T is
applied. For each k the explorers need credit up to G(k + 1), and the trainer needs G(k + 1) >= (k + 1)TB to publish what
they then wait for. Under the other styles an explorer that is out of credit takes the newest version at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.sync.policy import Style, SyncPolicy


@dataclass(frozen=True, slots=True)
class Hang:
    """Why, and how far the trainer comes before."""

    reason: str
    trainer_steps: int
    """Steps done when nothing moves any more, at most; without a bound on staleness, a run that ends by then does not hang."""


def find_hang(policy: SyncPolicy, explorers: int, total_steps: int | None) -> Hang | None:
    """The earliest certain hang of a run of `total_steps` (None: endless) with so many explorers, if there is one."""
    hangs = [hang for hang in _hangs(policy, explorers) if total_steps is None or hang.trainer_steps < total_steps]
    return min(hangs, key=lambda hang: hang.trainer_steps, default=None)


def _hangs(policy: SyncPolicy, explorers: int) -> Iterator[Hang]:
    batch, queue = policy.groups_per_train_step, policy.max_queued_groups
    staleness, interval = policy.max_staleness, policy.trainer_interval
    if queue < batch:
        yield Hang(
            f"`buffer.max_groups` {queue} is below `trainer.batch_size` {batch}: a whole batch can never wait in the trainer",
            trainer_steps=0,
        )
    if staleness is not None and staleness < interval - 1 and policy.style is not Style.EXPLORER_DRIVEN:
        yield Hang(
            f"`sync.max_staleness` {staleness} is below the trainer's sync interval minus one, {interval - 1}: on version 0 only "
            f"({staleness} + 1) x {batch} groups can be trained, which is {staleness + 1} trainer steps, and the next version is "
            f"published at step {interval}",
            trainer_steps=staleness + 1,
        )
    if policy.style is Style.FIXED:
        yield from _fixed(policy, explorers)


def _fixed(policy: SyncPolicy, explorers: int) -> Iterator[Hang]:
    batch, interval, queue = policy.groups_per_train_step, policy.trainer_interval, policy.max_queued_groups
    window = policy.explorer_interval * policy.groups_per_explore_step * explorers
    first = window + policy.offset * policy.groups_per_explore_step * explorers
    who = "1 explorer" if explorers == 1 else f"{explorers} explorers"
    makes = (
        f"{who} x {policy.groups_per_explore_step} tasks x {policy.explorer_interval} explore steps = {window} groups"
    )
    takes = f"{interval} trainer steps x {batch} = {interval * batch} groups"

    k = _first_above_zero(interval * batch - first, interval * batch - window)
    if k is not None:
        made = first + k * window
        yield Hang(
            f"fixed: from boundary to boundary the explorer side makes {makes}, and the trainer needs {takes} to publish the "
            f"next version: after explore step {policy.offset + (k + 1) * policy.explorer_interval} the explorer waits for "
            f"version {(k + 1) * interval}, which takes {(k + 1) * interval * batch} groups, and only {made} were made",
            trainer_steps=made // batch,
        )
    k = _first_above_zero(first - 2 * interval * batch - queue, window - interval * batch)
    # With a bound on staleness what the trainer cannot use is dropped in time, and makes room.
    if k is not None and policy.max_staleness is None:
        yield Hang(
            f"fixed: from boundary to boundary the explorer side makes {makes}, and the trainer takes {takes}: the surplus fills "
            f"`buffer.max_groups` {queue} before explore step {policy.offset + (k + 1) * policy.explorer_interval} is made, and "
            f"the trainer waits at step {(k + 2) * interval} until the version before is applied after that explore step",
            trainer_steps=(k + 2) * interval,
        )


def _first_above_zero(start: int, slope: int) -> int | None:
    """The smallest k >= 0 with start + k slope > 0."""
    if start > 0:
        return 0
    return -start // slope + 1 if slope > 0 else None
