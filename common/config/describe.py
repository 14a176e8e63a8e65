"""The sync regime of a configuration: as a policy for the state machines, and in words for people."""

from __future__ import annotations

from common.config.hangs import find_hang
from common.config.root import TandemConfig
from common.errors import ConfigError
from common.sync.policy import ImpossiblePolicy, Method, Style, SyncPolicy
from common.sync.simulate import find_deadlock


def plain_policy(config: TandemConfig) -> SyncPolicy:
    """The schedule of one stage, whether it would hang or not."""
    reproducible = config.run.deterministic and config.buffer.source == "explorers"
    try:
        return SyncPolicy(
            style=config.sync.style,
            trainer_interval=config.sync.trainer_interval or config.sync.interval,
            explorer_interval=config.sync.explorer_interval or config.sync.interval,
            offset=config.sync.offset,
            groups_per_train_step=config.trainer.batch_size,
            groups_per_explore_step=config.explorer.batch_size,
            max_staleness=config.sync.max_staleness,
            max_inflight_batches=config.sync.max_inflight_batches,
            max_queued_groups=config.buffer.max_groups,
            waits_for_slow=config.sync.wait_for_slow,
            repeats_windows=not reproducible,
            reproducible=reproducible,
        )
    except ImpossiblePolicy as error:
        raise ConfigError(f"{_stage(config)}sync: {error}") from error


def sync_policy(config: TandemConfig) -> SyncPolicy:
    """The schedule of one stage. Raises ConfigError with the reason where both sides would wait for ever."""
    policy = plain_policy(config)
    if config.buffer.source == "explorers":
        if policy.style is Style.EXPLORER_DRIVEN and config.explorer.trainer is None:
            raise ConfigError(
                f"{_stage(config)}sync.style: explorer_driven needs `explorer.trainer`: whom the explorer asks"
            )
        hang = find_hang(policy, explorers(config), config.trainer.total_steps)
        if hang is not None:
            raise ConfigError(
                f"{_stage(config)}the two sides would wait for each other for ever after trainer step {hang.trainer_steps}. "
                f"{hang.reason}. (A run with `trainer.total_steps` of at most {hang.trainer_steps} would end before.)"
                if hang.trainer_steps and policy.max_staleness is None
                else f"{_stage(config)}the two sides would wait for each other for ever, at trainer step {hang.trainer_steps} at "
                f"the latest. {hang.reason}."
                if hang.trainer_steps
                else f"{_stage(config)}the two sides would wait for each other for ever from the start. {hang.reason}."
            )
        reason = find_deadlock(policy, explorers(config), config.trainer.total_steps)
        if reason is not None:
            raise ConfigError(f"{_stage(config)}the two sides would wait for each other for ever: {reason}.")
    return policy


def explorers(config: TandemConfig) -> int:
    """Explorers that are sure to take part: those listed, at least as many as the trainer waits for."""
    return max(config.trainer.min_explorers, len(config.explorers))


def describe_sync(config: TandemConfig) -> str:
    """The regime of one stage in plain sentences. Raises ConfigError as `sync_policy` does."""
    policy = sync_policy(config)
    if config.buffer.source == "file":
        return (
            f"no sync: the trainer reads {config.buffer.path}, {policy.groups_per_train_step} examples a step; "
            "no explorer takes part."
        )
    return " ".join(
        [f"{policy.style.value}:", _explorer(config, policy), _trainer(config, policy), _staleness(config, policy)]
    )


def _stage(config: TandemConfig) -> str:
    return "" if config.stage_name == "main" else f"stage {config.stage_name!r}: "


def _explorer(config: TandemConfig, policy: SyncPolicy) -> str:
    count = explorers(config)
    who = "the explorer" if count == 1 else f"each of the {count} explorers"
    size = f"{policy.groups_per_explore_step} tasks x {config.explorer.group_size} rollouts"
    if policy.style is Style.FULLY_ASYNC:
        return (
            f"{who} makes explore steps of {size} without a break, at most {policy.max_inflight_batches} of them in flight, and "
            "swaps a new version in whenever it comes, between two decode steps."
        )
    then = {
        Style.FIXED: "finishes what is in flight and waits until a newer version is applied",
        Style.TRAINER_DRIVEN: "finishes what is in flight, applies a newer version if one has come, and goes on without waiting",
        Style.EXPLORER_DRIVEN: "finishes what is in flight, asks the trainer for a newer version, and goes on with it or with "
        "the answer that there is none",
    }[policy.style]
    first = policy.offset + policy.explorer_interval
    ahead = f", {policy.offset} of them ahead (offset {policy.offset})" if policy.offset else ""
    again = "every explore step" if policy.explorer_interval == 1 else f"every {policy.explorer_interval} explore steps"
    return f"{who} makes {_count(first, 'explore step')} of {size}{ahead}, then {then}; so again after {again}."


def _trainer(config: TandemConfig, policy: SyncPolicy) -> str:
    how = (
        "streams the weights"
        if config.sync.method is Method.SHARDS
        else "writes a checkpoint to shared storage and tells its path"
    )
    when = {
        1: "after every step",
    }.get(policy.trainer_interval, f"after every {policy.trainer_interval} steps")
    if policy.style is Style.EXPLORER_DRIVEN:
        when = "when an explorer asks and it has trained since"
    return f"A trainer step takes {policy.groups_per_train_step} groups; the trainer {how} {when}."


def staleness_bound(policy: SyncPolicy, count: int) -> int | None:
    """The most that anything which is trained can be stale, in steps, with so many explorers; None where nothing bounds it."""
    bounds = [_scheduled_staleness(policy, count), policy.max_staleness]
    return min((bound for bound in bounds if bound is not None), default=None)


def _staleness(config: TandemConfig, policy: SyncPolicy) -> str:
    bound = staleness_bound(policy, explorers(config))
    if bound is None:
        return (
            f"Staleness is bounded only by the {policy.max_queued_groups} groups that may wait in the trainer's buffer; "
            "`sync.max_staleness` would bound it."
        )
    text = f"Staleness is at most {_count(bound, 'step')}"
    if _scheduled_staleness(policy, explorers(config)) == 0:
        return f"{text}: on-policy."
    if policy.max_staleness == bound:
        credits_end = "" if policy.style is Style.FIXED else "credits are given no further, and "
        return f"{text}: {credits_end}what is older all the same is dropped and counted."
    return f"{text}."


def _scheduled_staleness(policy: SyncPolicy, count: int) -> int | None:
    """The most that `fixed` gives by itself, in steps, where both sides move equally many groups between two versions.

    A group made on version kT is among the first G(k + 1) of all (see hangs.py), or comes after groups of explorers that
    are one window ahead: ((n + M) E K + (K - 1) M E - 1) div B.
    """
    window = policy.explorer_interval * policy.groups_per_explore_step
    if policy.style is not Style.FIXED or window * count != policy.trainer_interval * policy.groups_per_train_step:
        return None
    first = window + policy.offset * policy.groups_per_explore_step
    return (first * count + (count - 1) * window - 1) // policy.groups_per_train_step


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
