"""Who does which task: the trainer lends each position of the order of tasks to one explorer at a time.

A position is lent with the credit for a group, and is done when that group is trained or dropped. What an explorer has not
begun when its stream breaks goes back at once, since credit ends with the stream; what it has begun stays lent to it, until
it is given up for gone. So every task is done once an epoch, whoever comes, goes or is slow: explorers share the tasks by
demand, and the share of one that leaves falls to the others.

After a restart of the trainer the pool is what the checkpoint says, and each explorer that comes back says what it holds.
Until all that are known are back, or given up, nothing should be lent, for it may be in somebody's spool. Where two have made
the same task all the same, what arrives second is refused.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_AHEAD = 1 << 20
"""Positions that an explorer may hold beyond those that the pool knows to be lent: after a restart, a checkpoint's worth."""


@dataclass(slots=True)
class _Loan:
    """What one explorer holds."""

    lent: set[int] = field(default_factory=set)
    """Positions of groups that have not arrived."""
    arrived: set[int] = field(default_factory=set)
    """... of groups that have, and are neither trained nor dropped."""
    replaced: dict[int, int] = field(default_factory=dict)
    """What was lent in place of tasks that failed, in case the answer was lost."""


class TaskPool:
    """The tasks of one stage, by position in their order."""

    def __init__(self, total: int | None = None) -> None:
        """`total` positions over all epochs; None: endless."""
        self.total = total
        self._next = 0
        """Every position below was lent at least once."""
        self._returned: list[int] = []
        """A heap of positions to lend again; it may hold ones that are no longer free."""
        self._free: set[int] = set()
        """Those that are."""
        self._loans: dict[str, _Loan] = {}
        self._holder: dict[int, str] = {}
        """Explorer, by position."""
        self._presumed: set[str] = set()
        """Explorers of which only the checkpoint says what they hold: the word of one that is there goes before it."""
        self._done_below = 0
        self._done_beyond: set[int] = set()

    @property
    def left(self) -> int | None:
        """Positions that can be lent now; None: endless."""
        return None if self.total is None else self.total - self._next + len(self._free)

    @property
    def done(self) -> int:
        """Positions that are done."""
        return self._done_below + len(self._done_beyond)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing can be lent any more, and every group that was lent has arrived."""
        return self.left == 0 and not any(loan.lent for loan in self._loans.values())

    @property
    def holders(self) -> tuple[str, ...]:
        """Explorers that have not delivered all that they hold."""
        return tuple(name for name, loan in self._loans.items() if loan.lent)

    @property
    def missing(self) -> frozenset[str]:
        """Explorers that held something when the pool was stored, and are neither back nor given up."""
        return frozenset(self._presumed)

    def lend(self, explorer: str, count: int) -> list[int]:
        """Positions for so many groups; fewer where fewer are left."""
        positions: list[int] = []
        while len(positions) < count and (position := self._take()) is not None:
            self._claim(explorer, position)
            positions.append(position)
        return positions

    def take_back(self, explorer: str, positions: Iterable[int]) -> None:
        """The explorer has not begun these, and will not. What it does not hold is left as it is."""
        lent = self._loan(explorer).lent
        for position in lent.intersection(positions):
            lent.remove(position)
            self._give_back(position)

    def replace(self, explorer: str, failed: int) -> int | None:
        """Another position in place of one whose task failed, which counts as done; None where none is left.

        Asked again after a lost answer, it gives the same.
        """
        loan = self._loan(explorer)
        if failed in loan.replaced:
            return loan.replaced[failed]
        if failed in loan.lent:
            loan.lent.remove(failed)
            del self._holder[failed]
            self._finish(failed)
        given = self.lend(explorer, 1)
        if not given:
            return None
        loan.replaced[failed] = given[0]
        return given[0]

    def rejoin(self, explorer: str, held: Collection[int]) -> None:
        """A stream was opened: the explorer holds these positions, begun or spooled, and nothing else.

        Raises ValueError for positions that can never have been lent.
        """
        highest = max(held, default=0)
        if highest > self._next + MAX_AHEAD or (self.total is not None and highest >= self.total > 0):
            raise ValueError(
                f"task {highest} of {self.total or 'endless'} is held, tasks up to {self._next} were given out"
            )
        self._presumed.discard(explorer)
        loan = self._loan(explorer)
        before, loan.lent = loan.lent, set()
        for position in held:
            holder = self._holder.get(position, explorer)
            if holder in self._presumed:
                self._loan(holder).lent.discard(position)
            elif holder != explorer:
                continue
            if position not in loan.arrived and not self._is_done(position):
                self._claim(explorer, position)
        # An answer that was lost on the way is not held: its task is lent anew when it is asked for again.
        loan.replaced = {failed: given for failed, given in loan.replaced.items() if given in loan.lent}
        for position in before - loan.lent:
            self._give_back(position)

    def arrive(self, explorer: str, position: int) -> bool:
        """A group arrived; False when its task was done by another group, or is another's: then it is of no use."""
        loan = self._loan(explorer)
        taken = self._holder.get(position, explorer) != explorer or position in loan.arrived
        if taken or self._is_done(position):
            return False
        self._claim(explorer, position)
        loan.lent.remove(position)
        loan.arrived.add(position)
        return True

    def finish(self, explorer: str, position: int) -> None:
        """The group that had arrived was trained or dropped."""
        loan = self._loan(explorer)
        if position in loan.arrived:
            loan.arrived.remove(position)
            del self._holder[position]
            self._finish(position)

    def give_up(self, explorer: str) -> int:
        """The explorer is gone: what it has not delivered goes to others. Returns how many positions."""
        self._presumed.discard(explorer)
        loan = self._loan(explorer)
        lost, loan.lent = loan.lent, set()
        for position in lost:
            self._give_back(position)
        return len(lost)

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, as JSON. Of groups that arrived and are not done, their explorer has the spool."""
        loans = {name: sorted(loan.lent | loan.arrived) for name, loan in self._loans.items()}
        return {
            "next": self._next,
            "done_below": self._done_below,
            "done_beyond": sorted(self._done_beyond),
            "loans": {name: positions for name, positions in loans.items() if positions},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The pool as a checkpoint stored it. Raises ValueError, TypeError or KeyError for what is none."""
        self._next = int(state["next"])
        self._done_below = int(state["done_below"])
        self._done_beyond = {int(position) for position in state["done_beyond"]}
        loans: Mapping[str, Sequence[int]] = state["loans"]
        for name, positions in loans.items():
            self._loan(name).lent = {int(position) for position in positions}
            self._holder |= dict.fromkeys(self._loan(name).lent, name)
            self._presumed.add(name)
        if self._next - self._done_below > MAX_AHEAD + len(self._done_beyond) + len(self._holder):
            raise ValueError(f"tasks {self._done_below} to {self._next} cannot all be in work")
        for position in range(self._done_below, self._next):
            if not self._is_done(position) and position not in self._holder:
                self._give_back(position)

    def _loan(self, explorer: str) -> _Loan:
        return self._loans.setdefault(explorer, _Loan())

    def _take(self) -> int | None:
        while self._returned:
            position = heapq.heappop(self._returned)
            if position in self._free:
                return position
        if self.total is not None and self._next >= self.total:
            return None
        return self._next

    def _claim(self, explorer: str, position: int) -> None:
        """Marks a position as lent that may be free, lent to this explorer, or not known yet."""
        for unknown in range(self._next, position):
            self._give_back(unknown)
        self._next = max(self._next, position + 1)
        self._free.discard(position)
        self._loan(explorer).lent.add(position)
        self._holder[position] = explorer

    def _give_back(self, position: int) -> None:
        self._holder.pop(position, None)
        if not self._is_done(position) and position not in self._free:
            self._free.add(position)
            heapq.heappush(self._returned, position)

    def _finish(self, position: int) -> None:
        self._done_beyond.add(position)
        while self._done_below in self._done_beyond:
            self._done_beyond.remove(self._done_below)
            self._done_below += 1

    def _is_done(self, position: int) -> bool:
        return position < self._done_below or position in self._done_beyond
