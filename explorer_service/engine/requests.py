"""What the event loop asks of the decode thread, and how answers get back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from common.config.explorer import SamplingConfig
from common.experience.experience import IntArray
from explorer_service.engine.base import Completion

Answer = TypeVar("Answer")


class Reply(Generic[Answer]):
    """One answer to a caller on an event loop, given by another thread."""

    def __init__(self) -> None:
        """Belongs to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Answer] = self._loop.create_future()

    def give(self, answer: Answer) -> None:
        """Wakes the caller with the answer, unless it has gone."""
        self._settle(lambda: self.future.set_result(answer))

    def fail(self, error: BaseException) -> None:
        """Wakes the caller with an error, unless it has gone."""
        self._settle(lambda: self.future.set_exception(error))

    def _settle(self, settle: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(lambda: None if self.future.done() else settle())
        except RuntimeError:
            # A closed loop has no caller left to wake.
            if not self._loop.is_closed():
                raise


@dataclass(slots=True, eq=False)
class Request:
    """One call of `generate`; after it is submitted the decode thread alone changes it."""

    prompt: IntArray
    """int32 `[P]`."""
    n: int
    """Samples asked for."""
    sampling: SamplingConfig
    """How they are drawn."""
    limit: int
    """Tokens a sample at most: of `max_tokens`, and of the room in the context."""
    seed: int
    """Of its uniforms."""
    reply: Reply[list[Completion]]
    """The caller."""
    pending: list[int] = field(default_factory=list)
    """Samples that wait for a slot, in order."""
    completions: list[Completion | None] = field(default_factory=list)
    """By sample; None while it is not finished."""
    _uniforms: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        self.pending = list(range(self.n))
        self.completions = [None] * self.n

    def uniforms(self, samples: list[int]) -> npt.NDArray[np.float64]:
        """float64 `[len(samples), limit]`: one for each token of these samples, from a counter-based generator.

        They depend on the seed, the sample and the token alone, so neither on the batch nor on being started again.
        """
        if self._uniforms is None:
            self._uniforms = np.random.Generator(np.random.Philox(self.seed)).random((self.n, self.limit))
        return self._uniforms[samples]

    def finished(self) -> list[Completion] | None:
        """All completions, or None while some are missing."""
        done = [completion for completion in self.completions if completion is not None]
        return done if len(done) == self.n else None


@dataclass(frozen=True, slots=True, eq=False)
class Cancel:
    """Frees whatever a request still holds."""

    request: Request


@dataclass(frozen=True, slots=True, eq=False)
class Swap:
    """New weights, already checked, for the next gap between two decode steps."""

    tensors: Mapping[str, torch.Tensor]
    run_epoch: int
    step: int
    checked_hash: str
    """Manifest hash of the tensors as they were checked."""
    reply: Reply[str]
    """Gets the manifest hash of the live weights."""


Command = Request | Cancel | Swap
