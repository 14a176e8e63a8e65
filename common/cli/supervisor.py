"""Keeps the two services together: both run, or both end, and the exit code is that of what failed first.

Rules:
- the explorer ends with 0: nothing happens, it had nothing more to do; the trainer ends with 0: the explorer must follow;
- one fails: the other gets SIGTERM. If what failed only says that the *other* side failed or was gone, that one first
  gets time to end by itself and say its own cause, which is then the one that counts;
- SIGINT, SIGTERM or SIGHUP to us is passed on once, and both drain; a second one kills them;
- whoever is still there at a deadline is killed.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.cli.child import Child
from common.cli.words import duration
from common.parent import DRAIN_SECONDS
from common.service import EXIT_FAILED, EXIT_FINISHED, EXIT_SIGNAL_BASE


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the supervisor waits before it does something worse."""

    own_cause: float = 15.0
    """For a side that the other one blames, to end by itself and say why."""
    follow: float = 60.0
    """For the explorer to end after the trainer has finished."""
    drain: float = DRAIN_SECONDS
    """From SIGTERM, or a forwarded signal, to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A side that ended with an error."""

    child: Child
    exit_code: int
    lines: tuple[str, ...]
    """The end of its log."""
    blames_peer: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How both have ended."""

    exit_code: int
    failures: tuple[Failure, ...]
    """The one that counts first."""
    signal: int | None = None
    """The signal that ended the run, if one did."""


class Supervisor:
    """Watches started children until all have ended."""

    def __init__(self, children: Sequence[Child], notice: Callable[[str], None], patience: Patience) -> None:
        """`notice` gets a sentence whenever something happens that a person should see."""
        self.signal: int | None = None
        """The first signal that came."""
        self._children = tuple(children)
        self._notice = notice
        self._patience = patience
        self._failures: list[Failure] = []
        self._deadline: tuple[float, Callable[[], None]] | None = None
        self._wake = asyncio.Event()
        self.stopping = False
        """Both were asked to end."""
        self._killed = False

    def interrupt(self, number: int) -> None:
        """A signal has come: the first is passed on, the second kills."""
        name = signal.Signals(number).name
        if self.signal is not None:
            self._notice(f"{name} again: killed, without waiting for the drain")
            self._kill()
            return
        self.signal = number
        self._notice(f"{name}: both sides finish what they are doing and save; once more kills them")
        self._stop(number)

    async def run(self) -> Outcome:
        """Returns when every child has ended."""
        running = {asyncio.create_task(child.ended()): child for child in self._children}
        while running:
            self._wake.clear()
            woken = asyncio.create_task(self._wake.wait())
            done, _ = await asyncio.wait(
                {*running, woken}, timeout=self._remaining(), return_when=asyncio.FIRST_COMPLETED
            )
            woken.cancel()
            for task in [task for task in running if task in done]:
                child = running.pop(task)
                self._ended(child, task.result(), still_running=bool(running))
            if self._deadline is not None and time.monotonic() >= self._deadline[0]:
                _, act = self._deadline
                self._deadline = None
                act()
        return self._outcome()

    def _ended(self, child: Child, code: int, *, still_running: bool) -> None:
        asked_for = {EXIT_SIGNAL_BASE + signal.SIGTERM, EXIT_SIGNAL_BASE + (self.signal or 0)}
        if self._killed:
            asked_for.add(EXIT_SIGNAL_BASE + signal.SIGKILL)
        asked_to = self.stopping and code in asked_for
        if code == EXIT_FINISHED or asked_to:
            if still_running and child.name == "trainer" and not self.stopping:
                self._set_deadline(self._patience.follow, self._did_not_follow)
            return
        end = child.log_end()
        self._failures.append(Failure(child, code, (*end.lines, *_killed_by(code)), end.blames_peer))
        if not still_running or self.stopping:
            return
        if end.blames_peer:
            self._set_deadline(self._patience.own_cause, self._stop)
        else:
            self._notice(f"the {child.name} ended with exit code {code}; the other side is stopped")
            self._stop()

    def _stop(self, number: int = signal.SIGTERM) -> None:
        self.stopping = True
        for child in self._children:
            child.send(number)
        self._set_deadline(self._patience.drain, self._drain_took_too_long)

    def _kill(self) -> None:
        self.stopping = self._killed = True
        for child in self._children:
            child.kill()

    def _drain_took_too_long(self) -> None:
        names = " and ".join(f"the {child.name}" for child in self._children if child.exit_code is None)
        self._notice(f"{names} did not end within {duration(self._patience.drain)}: killed")
        self._kill()

    def _did_not_follow(self) -> None:
        """The trainer has finished and said so; an explorer that does not end then hangs."""
        for child in self._children:
            if child.exit_code is None:
                text = f"did not end within {duration(self._patience.follow)} after the trainer had finished"
                self._failures.append(Failure(child, EXIT_FAILED, (text,), blames_peer=False))
        self._stop()

    def _set_deadline(self, seconds: float, act: Callable[[], None]) -> None:
        self._deadline = (time.monotonic() + seconds, act)
        self._wake.set()

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline[0] - time.monotonic())

    def _outcome(self) -> Outcome:
        # Stable: of those that give a cause of their own, the one that ended first comes first.
        failures = tuple(sorted(self._failures, key=lambda failure: failure.blames_peer))
        if self.signal is not None:
            return Outcome(EXIT_SIGNAL_BASE + self.signal, failures, self.signal)
        return Outcome(failures[0].exit_code if failures else EXIT_FINISHED, failures)


def _killed_by(code: int) -> tuple[str, ...]:
    """What the log of a process that a signal ended cannot say."""
    number = code - EXIT_SIGNAL_BASE
    if number not in {int(known) for known in signal.Signals}:
        return ()
    why = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return (f"killed by {signal.Signals(number).name}{why}",)
