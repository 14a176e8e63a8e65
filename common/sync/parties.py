"""What surrounds the machines in a pair that runs without services: spools, accounts, checkpoints."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from common.sync.explorer_machine import ExplorerSyncState, Version
from common.sync.happening import Group


@dataclass(slots=True)
class Account:
    """What the trainer knows of an explorer's spool."""

    received: int = 0
    """Groups received, in the spool's order."""
    gone: set[int] = field(default_factory=set)
    """Places of the groups that were trained or dropped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a trainer restarts from."""

    step: int
    gone: tuple[frozenset[int], ...]
    lineage: tuple[tuple[int, int], ...]
    """(run epoch, last step that counts) of the epochs before."""
    epoch: int
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
        self.asked: Version | None = None
        """The live version when it asked for a sync, while there is no answer."""
        self.call_failed = False
        """... and the call failed, because the trainer was away."""
        self.finishes = 0
        """How often this incarnation has finished."""
        self.stored = Stored(self.state, {}, {})
