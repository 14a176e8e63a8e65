"""What surrounds the machines in a pair that runs without services: spools, accounts, checkpoints."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from common.sync.explorer_machine import ExplorerSyncState, Version
from common.sync.happening import Group
from common.sync.lineage import Lineage


@dataclass(slots=True)
class Account:
    """What the trainer knows of an explorer's spool."""

    received: int = 0
    """Groups received, in the spool's order."""
    gone: set[int] = field(default_factory=set)
    """Places of the groups that were trained or dropped."""

    def restore(self, gone: frozenset[int]) -> None:
        """As a checkpoint stored it: received is what is gone without a gap."""
        self.gone = set(gone)
        self.received = 0
        while self.received in gone:
            self.received += 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a trainer restarts from."""

    step: int
    gone: tuple[frozenset[int], ...]
    lineage: Lineage
    pool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """What an explorer restarts from: committed with each group that it spools, and with each version that it applies."""

    state: ExplorerSyncState
    running: dict[int, int]
    tasks: dict[int, int]


class Explorer:
    """One explorer, with what is around its machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ExplorerSyncState()
        self.connected = False
        self.streams = 0
        """Streams opened: the present one's incarnation."""
        self.life = 0
        """The process's incarnation."""
        self.spool: list[Group] = []
        self.running: dict[int, int] = {}
        """Explore step by ordinal of the groups in flight."""
        self.tasks: dict[int, int] = {}
        """Task by ordinal of the groups in flight."""
        self.begun: dict[int, int] = {}
        """Step of the version that each group in flight was begun on, by ordinal."""
        self.told: int | None = None
        """What it said last in this stream of the oldest of them."""
        self.given: deque[int] = deque()
        """Tasks that credit came with, of groups that are not begun."""
        self.made: dict[int, Group] = {}
        """Reproducible: groups in flight that are finished, and not spooled before those with lower ordinals."""
        self.offered: int | None = None
        """Reproducible: step of the version that the trainer of this stream waits to see applied."""
        self.asked: Version | None = None
        """The live version when it asked for a sync, while there is no answer."""
        self.call_failed = False
        """... and the call failed, because the trainer was away."""
        self.finishes = 0
        """How often this incarnation has finished."""
        self.stored = Stored(self.state, {}, {})

    @property
    def oldest(self) -> int:
        """Step of the oldest version that a group in flight was begun on, else of the live one."""
        return min(self.begun.values(), default=self.state.version[1])

    def begin(self, index: int, ordinal: int, version: Version) -> Group:
        """The group that it begins on this version; `index` is its own."""
        self.begun[ordinal] = version[1]
        return Group(index, ordinal, self.running[ordinal], version, version, self.tasks[ordinal])

    def lacks_what_it_asked_for(self, *, newer: bool) -> bool:
        """Whether the answer to its RequestSync leaves it with the version that it had."""
        if self.asked is None:
            return False
        # The answer may be to the call before: then nothing newer than at this one is live.
        came = newer and self.state.version > self.asked
        self.asked = None
        return not came

    def put(self, group: Group) -> Group:
        """The group is made: it is spooled, and with it what a restart goes on from."""
        del self.running[group.ordinal], self.tasks[group.ordinal], self.begun[group.ordinal]
        spooled = replace(group, newest=self.state.version, place=len(self.spool))
        self.spool.append(spooled)
        self.store()
        return spooled

    def store(self) -> None:
        """What a restart goes on from is committed."""
        self.stored = Stored(self.state, dict(self.running), dict(self.tasks))

    def restart(self) -> None:
        """A new process goes on from what was committed: no weights are live, and no credit holds."""
        stored = self.stored
        self.life += 1
        self.running = dict(stored.running)
        self.tasks = dict(stored.tasks)
        self.begun = {}
        self.made = {}
        self.offered = None
        self.asked = None
        self.finishes = 0
        self.state = ExplorerSyncState(
            phase=stored.state.phase,
            window=stored.state.window,
            explore_step=stored.state.explore_step,
            unstarted=stored.state.unstarted,
            started=stored.state.started,
            credit_limit=stored.state.started,
            in_flight=MappingProxyType(dict(Counter(stored.running.values()))),
            taskset_ended=stored.state.taskset_ended,
        )
