"""Both sides of a run, without services: the two machines, and between them what the services do, as plain data.

Whatever takes time is a `Happening`: it is handed to `post` when it begins, and to `Pair.happen` when it is over. So who
drives the pair decides when things happen: the simulator by durations, the property tests in any order they like. What is
posted under one `channel` must happen in the order in which it was posted.

A stream that is cut loses what is on it; what it lost is sent again when the explorer joins again. A trainer or an explorer that
restarts goes on from what it had stored: its checkpoint, its spool.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from common.sync import explorer_machine, trainer_machine
from common.sync.actions import (
    AnswerSync,
    ApplyWeights,
    AskForSync,
    Deliver,
    ExplorerAction,
    Finish,
    Grant,
    Publish,
    RepeatWindow,
    ReportWaiting,
    StartGroups,
    TrainerAction,
)
from common.sync.events import (
    CreditGranted,
    CreditRevoked,
    DrainRequested,
    ExplorerEvent,
    ExplorerFinished,
    ExplorerGivenUp,
    ExplorerJoined,
    ExplorerLeft,
    ExplorerWaits,
    GroupFinished,
    GroupsDropped,
    GroupsReceived,
    NothingNewer,
    OldestInFlight,
    RunEnding,
    SyncRequested,
    TasksCounted,
    TasksEnded,
    TrainerEvent,
    TrainStepDone,
    TrainStepStarted,
    WeightsApplied,
    WeightsDelivered,
    WeightsStaged,
    WindowRepeated,
)
from common.sync.explorer_machine import Version
from common.sync.happening import Group, Happening, Kind
from common.sync.lineage import Lineage
from common.sync.parties import Account, Checkpoint, Explorer
from common.sync.policy import SyncPolicy
from common.sync.task_pool import TaskPool
from common.sync.trainer_state import begun_at


class Pair:
    """One trainer and its explorers."""

    def __init__(
        self,
        policy: SyncPolicy,
        explorers: int,
        post: Callable[[Happening], None],
        *,
        total_steps: int | None = None,
        tasks: int | None = None,
    ) -> None:
        """`tasks` are shared by all explorers; None: endless."""
        self.policy = policy
        self.total_steps = total_steps
        self.pool = TaskPool(tasks)
        self.trainer = begun_at(0, policy)
        self.explorers = [Explorer(f"explorer-{index}") for index in range(explorers)]
        self.accounts = [Account() for _ in range(explorers)]
        self.queue: list[tuple[tuple[int, int, int], Group]] = []
        """A heap, oldest version first."""
        self.batch: list[Group] = []
        """What the running step trains on."""
        self.dropped: Counter[str] = Counter()
        self.ending = False
        self.missing: set[int] = set()
        """Explorers that may hold tasks that a restarted trainer does not know to be lent."""
        self.lineage = Lineage(1)
        self._begun = {1: (0, 0)}
        """What the trainer of each run epoch began with."""
        self._tasks_ended = False
        self._post = post
        self._index = {explorer.name: index for index, explorer in enumerate(self.explorers)}

    @property
    def epoch(self) -> int:
        """The trainer's run epoch."""
        return self.lineage.epoch

    # --- what a driver can make happen ------------------------------------------------------------------------------

    def join(self, index: int) -> None:
        """The explorer's stream is opened, and what the trainer lacks is sent again."""
        explorer, account = self.explorers[index], self.accounts[index]
        explorer.connected = True
        explorer.streams += 1
        explorer.offered = None
        live = explorer.state.version
        known = live[0] == self.epoch or (self.policy.reproducible and live > (0, 0))
        spooled = {group.task for group in explorer.spool if group.place not in account.gone}
        self.pool.rejoin(explorer.name, spooled | set(explorer.tasks.values()))
        self.missing.discard(index)
        self.feed_trainer(
            ExplorerJoined(
                explorer.name,
                applied=live[1] if known else None,
                started=explorer.state.started,
                received=account.received,
                gone=sum(place < account.received for place in account.gone),
            )
        )
        self._count_tasks()
        for group in explorer.spool[account.received :]:
            self._send(Kind.GROUP, index, group)
        if self.ending:
            self.feed_explorer(index, DrainRequested())
        explorer.told = None
        self._tell_oldest(index)
        if explorer_machine.stands(explorer.state, self.policy):
            self._report(index, explorer_machine.report_of_waiting(explorer.state))
        if explorer.state.finished:
            self._send(Kind.FINISHED, index, limit=explorer.state.started)
        if self._tasks_ended:
            self._send(Kind.TASKS_ENDED, index)
        self._end_tasks()
        if explorer.asked is not None and explorer.call_failed:
            # The call is made again until there is an answer; a version that came meanwhile is one.
            explorer.call_failed = False
            if explorer.state.version > explorer.asked:
                explorer.asked = None
            else:
                self._post(Happening(Kind.ASK, index, explorer.life))

    def cut(self, index: int) -> None:
        """The explorer's stream breaks."""
        explorer = self.explorers[index]
        if explorer.connected:
            explorer.connected = False
            explorer.given.clear()
            self.feed_trainer(ExplorerLeft(explorer.name))
            self.feed_explorer(index, CreditRevoked())

    def give_up(self, index: int) -> None:
        """The explorer will not come back: what it has not delivered falls to the others."""
        self.cut(index)
        self.missing.discard(index)
        name = self.explorers[index].name
        self.pool.give_up(name)
        if name in self.trainer.explorers:
            self.feed_trainer(ExplorerGivenUp(name))
        self._count_tasks()
        self._end_tasks()

    def restart_explorer(self, index: int) -> None:
        """The explorer is killed and comes back, not joined yet: what was in flight begins anew on the first version it gets.

        Reproducible: on the version that it had.
        """
        self.cut(index)
        explorer = self.explorers[index]
        explorer.restart()
        if self.policy.reproducible and explorer.stored.state.version > (0, 0):
            self._swapped(index, explorer.stored.state.version)

    def checkpoint(self) -> Checkpoint:
        """What a trainer that is killed later can restart from."""
        gone = tuple(frozenset(account.gone) for account in self.accounts)
        return Checkpoint(self.trainer.step, gone, self.lineage, self.pool.state())

    def restart_trainer(self, checkpoint: Checkpoint) -> None:
        """The trainer is killed and comes back from the checkpoint; no explorer is joined yet."""
        for explorer in self.explorers:
            explorer.connected = False
            explorer.call_failed = True
            explorer.given.clear()
        self.pool = TaskPool(self.pool.total)
        self.pool.restore(checkpoint.pool)
        self.missing = {index for index, explorer in enumerate(self.explorers) if explorer.streams}
        self._begun[self.epoch + 1] = (checkpoint.lineage.epoch, checkpoint.step)
        self.lineage = checkpoint.lineage.next(self.epoch + 1, checkpoint.step).knowing(self._begun)
        self.trainer = begun_at(checkpoint.step, self.policy)
        self.queue, self.batch = [], []
        for account, gone in zip(self.accounts, checkpoint.gone, strict=True):
            account.restore(gone)
        for index in range(len(self.explorers)):
            self.feed_explorer(index, CreditRevoked())

    def can_train(self) -> bool:
        """Whether a step may start now."""
        if self.is_over() or not trainer_machine.may_train(self.trainer, self.policy):
            return False
        enough = len(self.queue) >= self.policy.groups_per_train_step or (self._nothing_comes() and bool(self.queue))
        return enough and not trainer_machine.waits_for_slow(self.trainer, self.policy, self.trainer.step + 1)

    def start_training(self) -> None:
        """Takes a batch, oldest version first, and starts a step."""
        count = min(self.policy.groups_per_train_step, len(self.queue))
        self.batch = [heapq.heappop(self.queue)[1] for _ in range(count)]
        taken = Counter(self.explorers[group.explorer].name for group in self.batch)
        self.feed_trainer(TrainStepStarted(tuple(sorted(taken.items()))))
        self._post(Happening(Kind.TRAIN, incarnation=self.epoch))

    def is_over(self) -> bool:
        """Whether all steps are done, or no data is left for another one."""
        if self.trainer.training:
            return False
        if self.total_steps is not None and self.trainer.step >= self.total_steps:
            return True
        return self._nothing_comes() and not self.queue

    def begin_end(self) -> None:
        """The run is over: the explorers are asked to drain."""
        self.ending = True
        for index, explorer in enumerate(self.explorers):
            if explorer.connected:
                self.feed_explorer(index, DrainRequested())

    def end(self) -> bool:
        """Publishes the final weights once all are drained; True when everybody has them."""
        if any(explorer.connected and explorer.state.in_flight for explorer in self.explorers):
            return False
        if not self.trainer.ending:
            self.feed_trainer(RunEnding())
        arriving = any(view.connected and view.target is not None for view in self.trainer.explorers.values())
        return not arriving and not trainer_machine.is_due(self.trainer, self.policy)

    def happen(self, happening: Happening) -> None:
        """What has begun is over."""
        index = happening.explorer
        if happening.kind is Kind.TRAIN:
            if happening.incarnation == self.epoch:
                self._trained()
            return
        explorer = self.explorers[index]
        of_process = happening.kind in {Kind.ROLLOUT, Kind.SWAP, Kind.ASK, Kind.ANSWER}
        if happening.incarnation != (explorer.life if of_process else explorer.streams):
            return
        if not of_process and not explorer.connected:
            return
        self._over(explorer, happening)

    def drop_stale(self) -> None:
        """Drops what would be too stale in the next step."""
        bound = self.policy.max_staleness
        while bound is not None and self.queue and self.trainer.step - self.queue[0][1].oldest[1] > bound:
            self._drop(heapq.heappop(self.queue)[1], "too_stale")

    # --- the machines and what they order -----------------------------------------------------------------------------

    def feed_trainer(self, event: TrainerEvent) -> None:
        """Takes an event to the trainer's machine, and begins what it orders."""
        self.trainer, actions = trainer_machine.step(self.trainer, event, self.policy)
        for action in actions:
            self._start_for_trainer(action)

    def feed_explorer(self, index: int, event: ExplorerEvent) -> None:
        """Takes an event to an explorer's machine, and begins what it orders."""
        explorer = self.explorers[index]
        explorer.state, actions = explorer_machine.step(explorer.state, event, self.policy)
        for action in actions:
            self._start_for_explorer(index, action)
        self._tell_oldest(index)

    def _tell_oldest(self, index: int) -> None:
        explorer = self.explorers[index]
        if explorer.connected and explorer.oldest != explorer.told and explorer.state.version > (0, 0):
            explorer.told = explorer.oldest
            self._send(Kind.OLDEST, index, version=(0, explorer.oldest))

    def _start_for_trainer(self, action: TrainerAction) -> None:
        match action:
            case Publish(step, names):
                for name in names:
                    self._send(Kind.PUSH, self._index[name], version=(self.epoch, step))
            case Deliver(step, name):
                self._send(Kind.PUSH, self._index[name], version=(self.epoch, step))
            case Grant(name, count, min_step):
                tasks = tuple(self.pool.lend(name, count))
                self._send(Kind.CREDIT, self._index[name], version=(self.epoch, min_step), tasks=tasks)
            case RepeatWindow(name, step):
                self._send(Kind.REPEAT, self._index[name], version=(self.epoch, step))
            case AnswerSync(name, newer, _):
                index = self._index[name]
                self._post(Happening(Kind.ANSWER, index, self.explorers[index].life, newer=newer))

    def _start_for_explorer(self, index: int, action: ExplorerAction) -> None:
        explorer = self.explorers[index]
        match action:
            case StartGroups(explore_step, count, first):
                for ordinal in range(first, first + count):
                    explorer.tasks[ordinal] = explorer.given.popleft()
                    explorer.running[ordinal] = explore_step
                    self._roll_out(index, ordinal, explorer.state.version)
            case ApplyWeights(epoch, step):
                self._post(Happening(Kind.SWAP, index, explorer.life, (epoch, step)))
            case AskForSync():
                explorer.asked = explorer.state.version
                explorer.call_failed = False
                self._post(Happening(Kind.ASK, index, explorer.life))
            case ReportWaiting():
                self._report(index, action)
            case Finish():
                explorer.finishes += 1
                self._send(Kind.FINISHED, index, limit=explorer.state.started)
            case _:
                pass

    def _send(
        self,
        kind: Kind,
        index: int,
        group: Group | None = None,
        *,
        version: Version = (0, 0),
        limit: int = 0,
        tasks: tuple[int, ...] = (),
    ) -> None:
        if self.explorers[index].connected:
            self._post(Happening(kind, index, self.explorers[index].streams, version, limit, tasks, group=group))

    def _report(self, index: int, report: ReportWaiting) -> None:
        given = self.explorers[index].given
        returned = tuple(given.popleft() for _ in range(report.returned))
        self._send(Kind.WAITS, index, version=(report.epoch, report.step), limit=report.started, tasks=returned)

    def _waits(self, explorer: Explorer, word: Happening) -> None:
        if word.version[0] != self.epoch:
            return
        self.pool.take_back(explorer.name, word.tasks)
        self.feed_trainer(ExplorerWaits(explorer.name, word.version[1], word.limit, len(word.tasks)))
        self._count_tasks()

    def _count_tasks(self) -> None:
        """Nothing is given out before everybody has said what it holds."""
        self.feed_trainer(TasksCounted(0 if self.missing else self.pool.left))

    def _end_tasks(self) -> None:
        """Says once in each stream that no task is left."""
        if not self.pool.is_exhausted or self.missing:
            self._tasks_ended = False
        elif not self._tasks_ended:
            self._tasks_ended = True
            for index in range(len(self.explorers)):
                self._send(Kind.TASKS_ENDED, index)

    def _roll_out(self, index: int, ordinal: int, version: Version) -> None:
        explorer = self.explorers[index]
        self._post(Happening(Kind.ROLLOUT, index, explorer.life, group=explorer.begin(index, ordinal, version)))

    def _spool(self, index: int, group: Group) -> None:
        explorer = self.explorers[index]
        explorer.made[group.ordinal] = group
        while explorer.made:
            lowest = min(explorer.running) if self.policy.reproducible else group.ordinal
            if lowest not in explorer.made:
                return
            ready = explorer.made.pop(lowest)
            self._send(Kind.GROUP, index, explorer.put(ready))
            self.feed_explorer(index, GroupFinished(ready.explore_step))

    def _receive(self, index: int, group: Group) -> None:
        account, name = self.accounts[index], self.explorers[index].name
        account.received += 1
        self.feed_trainer(GroupsReceived(name, 1))
        if group.place in account.gone:
            self.feed_trainer(GroupsDropped(name, 1))
        elif not self.pool.arrive(name, group.task):
            self._drop(group, "task_done_before")
        elif not self.policy.reproducible and not self.lineage.holds(*group.newest):
            self._drop(group, "lost_lineage")
        else:
            heapq.heappush(self.queue, (group.turn, group))
        self._end_tasks()

    def _drop(self, group: Group, reason: str) -> None:
        self.dropped[reason] += 1
        self._let_go(group)
        self.feed_trainer(GroupsDropped(self.explorers[group.explorer].name, 1))

    def _let_go(self, group: Group) -> None:
        self.accounts[group.explorer].gone.add(group.place)
        self.pool.finish(self.explorers[group.explorer].name, group.task)

    def _stage(self, index: int, version: Version) -> None:
        state = self.explorers[index].state
        if self.policy.reproducible:
            self._stage_step(index, version)
        elif version == state.version:
            self._send(Kind.OUTCOME, index, version=version)
        elif version > max(state.version, state.staged or (0, 0)):
            self.feed_explorer(index, WeightsStaged(*version))

    def _stage_step(self, index: int, version: Version) -> None:
        """A version is known by its step: what is here already, from whichever epoch, is not brought again."""
        explorer = self.explorers[index]
        if version[1] <= explorer.state.version[1] and explorer.state.version > (0, 0):
            self._send(Kind.OUTCOME, index, version=version)
            return
        explorer.offered = version[1]
        if explorer.state.staged is None or version[1] > explorer.state.staged[1]:
            self.feed_explorer(index, WeightsStaged(*version))

    def _swapped(self, index: int, version: Version) -> None:
        explorer = self.explorers[index]
        if explorer.state.version == (0, 0):
            for ordinal in explorer.running:
                self._roll_out(index, ordinal, version)
        self.feed_explorer(index, WeightsApplied(*version))
        explorer.store()
        if self.policy.reproducible:
            if explorer.offered is not None and explorer.offered <= version[1]:
                self._send(Kind.OUTCOME, index, version=(self.epoch, explorer.offered))
                explorer.offered = None
        elif version[0] == self.epoch:
            self._send(Kind.OUTCOME, index, version=version)

    def _over(self, explorer: Explorer, happening: Happening) -> None:
        index, version = happening.explorer, happening.version
        match happening.kind:
            case Kind.ROLLOUT if happening.group is not None:
                self._spool(index, happening.group)
            case Kind.GROUP if happening.group is not None:
                self._receive(index, happening.group)
            case Kind.FINISHED | Kind.WAITS | Kind.OLDEST:
                self._said(explorer, happening)
            case Kind.REPEAT | Kind.TASKS_ENDED | Kind.CREDIT:
                self._told(explorer, happening)
            case Kind.PUSH:
                self._stage(index, version)
            case Kind.SWAP:
                self._swapped(index, version)
            case Kind.OUTCOME:
                self.feed_trainer(WeightsDelivered(explorer.name, version[1]))
            case Kind.ASK:
                self._ask(explorer)
            case _:
                self._answer(index, newer=happening.newer)

    def _said(self, explorer: Explorer, word: Happening) -> None:
        if word.kind is Kind.FINISHED:
            self.feed_trainer(ExplorerFinished(explorer.name, word.limit))
        elif word.kind is Kind.OLDEST:
            self.feed_trainer(OldestInFlight(explorer.name, word.version[1]))
        else:
            self._waits(explorer, word)

    def _told(self, explorer: Explorer, word: Happening) -> None:
        if word.kind is Kind.REPEAT:
            self.feed_explorer(word.explorer, WindowRepeated(word.version[1]))
        elif word.kind is Kind.TASKS_ENDED:
            self.feed_explorer(word.explorer, TasksEnded())
        else:
            explorer.given.extend(word.tasks)
            self.feed_explorer(word.explorer, CreditGranted(len(word.tasks), word.version[1]))

    def _ask(self, explorer: Explorer) -> None:
        if explorer.name in self.trainer.explorers:
            self.feed_trainer(SyncRequested(explorer.name))
        else:
            explorer.call_failed = True

    def _answer(self, index: int, *, newer: bool) -> None:
        if self.explorers[index].lacks_what_it_asked_for(newer=newer):
            self.feed_explorer(index, NothingNewer())

    def _trained(self) -> None:
        for group in self.batch:
            self._let_go(group)
        self.batch = []
        self.feed_trainer(TrainStepDone())

    def _nothing_comes(self) -> bool:
        return not self.missing and trainer_machine.nothing_comes(self.trainer)
