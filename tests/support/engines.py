"""A rollout engine without a model, for tests of what uses one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from common.config.explorer import SamplingConfig
from common.errors import LimitExceeded, MalformedData, ManifestMismatch, NonFiniteWeights, ShuttingDown
from common.weights.manifest import Manifest, build_manifest
from explorer_service.engine.base import Completion, EngineStatistics

END_TOKEN = 1


def echo(prompt: Sequence[int], index: int) -> list[int]:
    """The default script: the prompt again, then the end token."""
    return [*prompt, END_TOKEN]


class ScriptedRolloutEngine:
    """Answers by a script: `script(prompt, index)` gives the tokens of the prompt's sample `index`.

    Every token takes `token_seconds` and one turn of the event loop, so that swaps and cancellations can fall between
    two tokens. `fail` breaks it as a broken model would.
    """

    def __init__(
        self,
        script: Callable[[Sequence[int], int], Sequence[int]] = echo,
        *,
        tensors: Mapping[str, torch.Tensor] | None = None,
        max_length: int = 1024,
        token_seconds: float = 0.0,
    ) -> None:
        self._script = script
        self._tensors = dict(tensors) if tensors is not None else {"weight": torch.zeros(4)}
        self._max_length = max_length
        self._token_seconds = token_seconds
        self._broken: BaseException | None = None
        self._pending: set[asyncio.Future[None]] = set()
        self._version = (0, 0)
        self._generated = 0
        self._running = 0
        self.calls: list[tuple[tuple[int, ...], int, int | None]] = []
        """(prompt, n, seed) of each call of `generate`."""

    @property
    def layout_hash(self) -> str:
        return self.layout.layout_hash

    @property
    def layout(self) -> Manifest:
        return build_manifest(self._tensors)

    @property
    def version(self) -> tuple[int, int]:
        return self._version

    async def generate(
        self, prompt: Sequence[int], n: int, sampling: SamplingConfig, seed: int | None = None
    ) -> list[Completion]:
        if self._broken is not None:
            raise self._broken
        if n < 1:
            raise MalformedData("n < 1")
        if not 0 < len(prompt) < self._max_length:
            raise LimitExceeded("prompt length")
        if min(prompt) < 0:
            raise MalformedData("negative token")
        self.calls.append((tuple(prompt), n, seed))
        limit = min(sampling.max_tokens, self._max_length - len(prompt))
        scripts = [list(self._script(prompt, index)) for index in range(n)]
        epoch, oldest = self._version
        newest = [oldest] * n
        self._running += n
        try:
            for token in range(max(len(script[:limit]) for script in scripts)):
                newest = [
                    self._version[1] if token < min(len(script), limit) else version
                    for script, version in zip(scripts, newest, strict=True)
                ]
                self._generated += sum(token < min(len(script), limit) for script in scripts)
                await self._pause()
        finally:
            self._running -= n
        return [
            Completion(
                tokens=np.asarray(script[:limit], dtype=np.int32),
                logprobs=np.zeros(min(len(script), limit), dtype=np.float32),
                oldest_version=oldest,
                newest_version=version,
                run_epoch=epoch,
                truncated=len(script) > limit or script[-1] != END_TOKEN,
                text=" ".join(str(token) for token in script[:limit] if token != END_TOKEN),
            )
            for script, version in zip(scripts, newest, strict=True)
        ]

    async def apply(
        self, tensors: Mapping[str, torch.Tensor], run_epoch: int, step: int, *, checked_hash: str = ""
    ) -> str:
        del checked_hash
        if self._broken is not None:
            raise self._broken
        if {name: (t.dtype, t.shape) for name, t in tensors.items()} != {
            name: (t.dtype, t.shape) for name, t in self._tensors.items()
        }:
            raise ManifestMismatch("another layout")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise NonFiniteWeights("not finite")
        self._tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self._version = (run_epoch, step)
        return self.layout.manifest_hash

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(self._generated, 0.0, self._running)

    async def close(self) -> None:
        if self._broken is None:
            self.fail(ShuttingDown("closed"))

    def fail(self, error: BaseException) -> None:
        """Fails pending calls with the error, and all later ones."""
        self._broken = error
        for future in self._pending:
            if not future.done():
                future.set_exception(error)

    async def _pause(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(
            self._token_seconds, lambda: None if future.done() else future.set_result(None)
        )
        self._pending.add(future)
        try:
            await future
        finally:
            self._pending.discard(future)
            timer.cancel()
