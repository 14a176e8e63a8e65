"""Requests that wait for slots, first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.experience.experience import IntArray
from explorer_service.engine.batch import Sample
from explorer_service.engine.requests import Request

PREFILL_TOKENS = 8192
"""Tokens of one pass over prompts, padding included: enough to fill a GPU, few enough that running rows wait little."""
_REFILL_SHARE = 8
"""A large group goes in by parts of at least 1 / 8 of all slots: its prompt is read again for each part."""


@dataclass(slots=True)
class Admission:
    """Samples that get slots together."""

    prompts: list[IntArray] = field(default_factory=list)
    """Prompts to read, each once."""
    samples: list[tuple[Request, int]] = field(default_factory=list)
    """(request, which of its samples)."""
    prompt_index: list[int] = field(default_factory=list)
    """By sample: which prompt."""


class WaitingLine:
    """A FIFO of requests with pending samples."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def join(self, request: Request) -> None:
        """Goes to the end."""
        self._requests.append(request)

    def leave(self, request: Request) -> None:
        """Takes a request out, if it is there."""
        if request in self._requests:
            self._requests.remove(request)

    def rejoin(self, samples: Iterable[Sample]) -> None:
        """Puts samples that lost their slots back, in front of all others."""
        back: dict[int, Request] = {}
        for sample in samples:
            sample.request.pending.append(sample.index)
            back[id(sample.request)] = sample.request
        for request in reversed(back.values()):
            request.pending.sort()
            self.leave(request)
            self._requests.appendleft(request)

    def take_all(self) -> list[Request]:
        """Empties the line."""
        taken = list(self._requests)
        self._requests.clear()
        return taken

    def admit(self, free: int, slots: int) -> Admission | None:
        """Takes as many samples as fit into `free` of `slots`, within PREFILL_TOKENS; None when none do.

        Equal prompts of one admission are read once. At least one prompt is admitted however long it is.
        """
        admission = Admission()
        known: dict[bytes, int] = {}
        longest = 0
        while self._requests:
            request = self._requests[0]
            part = min(len(request.pending), free)
            if part == 0 or part < min(len(request.pending), slots // _REFILL_SHARE):
                break
            key = request.prompt.tobytes()
            longest = max(longest, len(request.prompt))
            if key not in known:
                if known and (len(known) + 1) * longest > PREFILL_TOKENS:
                    break
                known[key] = len(known)
                admission.prompts.append(request.prompt)
            admission.samples += [(request, index) for index in request.pending[:part]]
            admission.prompt_index += [known[key]] * part
            del request.pending[:part]
            free -= part
            if not request.pending:
                self._requests.popleft()
        return admission if admission.samples else None
