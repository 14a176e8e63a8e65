"""What a run has measured of itself: how long its rollouts, steps and pushes took, and how large they were."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.checkpoint.atomic import storage_errors
from common.errors import MalformedData
from common.sync.happening import Group
from common.sync.simulate import Durations

MAX_LINE = 1 << 20
TRAINER = "trainer"
_WARM_UP = 1
"""Records of each file that are left out: first calls compile, allocate, and wait for the other side."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Of one stage; every value in the order in which it was logged."""

    groups: tuple[tuple[int, float, float], ...]
    """Of each explore step: groups, and seconds of one, mean and longest."""
    train: tuple[float, ...]
    """Seconds of each trainer step."""
    push: tuple[float, ...]
    """Seconds from the first byte of a version until an explorer had it whole."""
    swap: tuple[float, ...]
    """Seconds until it was live."""
    group_bytes: float
    """Of one group, on its way to the trainer."""
    version_bytes: float
    """Of one version, on its way to one explorer."""
    group_tokens: float
    """Sampled for one group; 0: not logged."""

    def durations(self, seed: int = 0) -> Durations:
        """Draws from what was measured: the same for the same seed."""
        pick = random.Random(seed)
        return Durations(
            rollout=self._rollout(pick),
            train=_drawn(self.train, pick),
            push=_drawn(self.push, pick) if self.push else 0.0,
            swap=_drawn(self.swap, pick) if self.swap else 0.0,
            latency=0.001,
        )

    def _rollout(self, pick: random.Random) -> Callable[[Group], float]:
        """One of a measured step's groups: its longest, or one of the others, which share what is left of the sum."""

        def seconds(_group: Group) -> float:
            groups, mean, longest = pick.choice(self.groups)
            if groups == 1 or pick.random() < 1 / groups:
                return longest
            return max(0.0, (groups * mean - longest) / (groups - 1))

        return seconds


def read_measured(run: Path, stage: str) -> MeasuredRun:
    """What the stage of a run has logged. Raises MalformedData where too little was, StorageFailed."""
    folder = run / stage / "metrics" if (run / stage).is_dir() else run / "metrics"
    with storage_errors(folder, "cannot list"):
        files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    trainer = [record for file in files if file.stem == TRAINER for record in _records(file)][_WARM_UP:]
    explorers = [record for file in files if file.stem != TRAINER for record in list(_records(file))[_WARM_UP:]]
    steps = [
        (
            int(record["explore/groups"]),
            record["time/group_mean"],
            record["time/group_max"],
            record["explore/bytes"],
            record.get("explore/tokens", 0.0),
        )
        for record in explorers
        if record.get("explore/groups", 0) >= 1 and "time/group_mean" in record
    ]
    train = _values(trainer, "time/train_step")
    if not steps or not train:
        raise MalformedData(
            f"{folder} has {len(train)} trainer steps and {len(steps)} explore steps with durations: a run of a few steps, "
            "with `jsonl` among `monitor.sinks`, is needed"
        )
    versions = _values(trainer, "sync/sent_bytes")
    return MeasuredRun(
        groups=tuple((groups, mean, longest) for groups, mean, longest, *_ in steps),
        train=train,
        push=_values(trainer, "time/sync_receive"),
        swap=_values(trainer, "time/sync_apply"),
        group_bytes=sum(size for *_, size, _ in steps) / sum(groups for groups, *_ in steps),
        group_tokens=sum(tokens for *_, tokens in steps) / sum(groups for groups, *_ in steps),
        version_bytes=sum(versions) / len(versions) if versions else 0.0,
    )


def _values(records: Sequence[dict[str, float]], name: str) -> tuple[float, ...]:
    return tuple(record[name] for record in records if name in record)


def _drawn(values: tuple[float, ...], pick: random.Random) -> Callable[[], float]:
    return lambda: pick.choice(values)


def _records(file: Path) -> Iterator[dict[str, float]]:
    """The numbers of each line; one that a crash cut short is left out."""
    with storage_errors(file, "cannot read"), file.open("rb") as lines:
        while line := lines.readline(MAX_LINE):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                numbers = record.get("metrics", record)
                if isinstance(numbers, dict):
                    yield {
                        name: float(value)
                        for name, value in numbers.items()
                        if isinstance(value, int | float) and value == value  # noqa: PLR0124 - not NaN
                    }
