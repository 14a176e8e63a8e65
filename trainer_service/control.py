"""What people and signals ask of a running trainer."""

from __future__ import annotations

from common.changes import Changes
from common.status import StatusBoard
from protos.tandem.v1 import trainer_pb2


class Control:
    """Pause and stop requests; the loop looks at them between two steps."""

    def __init__(self, changes: Changes, status: StatusBoard[int]) -> None:
        self._changes = changes
        self._status = status
        self.paused = False
        self.stop_reason: str | None = None
        self.signal: int | None = None
        """The signal that asked for the stop, if one did."""
        self.failure: BaseException | None = None
        """What happened outside of the loop that the loop must end with."""

    def pause(self) -> None:
        """No further step starts."""
        self.paused = True
        self._changes.notify()

    def resume(self) -> None:
        """Ends a pause."""
        self.paused = False
        self._changes.notify()

    def stop(self, reason: str, signal: int | None = None) -> None:
        """The run ends after the running step."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.signal = signal
        self._changes.notify()

    def fail(self, error: BaseException | None) -> None:
        """The run ends with this error, after the running step; None changes nothing."""
        if error is not None and self.failure is None:
            self.failure = error
        self._changes.notify()

    def raise_failure(self) -> None:
        """Raises what the run must end with, if anything."""
        if self.failure is not None:
            raise self.failure

    @property
    def stopping(self) -> bool:
        """Whether the run ends after the running step."""
        return self.stop_reason is not None or self.failure is not None

    async def until_resumed(self) -> None:
        """Returns at once unless paused; then when the pause or the run ends."""
        if self.paused and not self.stopping:
            self._status.enter(trainer_pb2.TRAINER_STATE_PAUSED, "by request")
            async with self._status.waiting("Resume", None):
                await self._changes.until(lambda: not self.paused or self.stopping)
            self._status.enter(trainer_pb2.TRAINER_STATE_WAITING_FOR_EXPERIENCES, "resumed")
