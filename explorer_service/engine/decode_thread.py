"""The thread that owns the model: takes commands, admits prompts, decodes, swaps weights, delivers.

It sleeps on a condition while there is nothing to do. Between two decode steps it does, in this order: commands (new
requests, cancellations, weight swaps), prompts that fit, one token for every row.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

import structlog
import torch

from common.errors import ShuttingDown, TandemError
from explorer_service.engine.base import EngineStatistics
from explorer_service.engine.batch import DecodeBatch, Sample
from explorer_service.engine.completions import CompletionWriter
from explorer_service.engine.live_weights import LiveWeights
from explorer_service.engine.requests import Cancel, Command, Request, Swap
from explorer_service.engine.sampling import draw
from explorer_service.engine.slot_model import SlotModel
from explorer_service.engine.waiting import WaitingLine

log = structlog.get_logger(__name__)


class DecodeThread:
    """Runs requests on a model. `submit`, `cancel`, `statistics` and `close` may be called from any thread."""

    def __init__(
        self,
        model: SlotModel,
        weights: LiveWeights,
        writer: CompletionWriter,
        *,
        max_sequences: int,
        torch_threads: int | None = None,
        alone: bool = False,
    ) -> None:
        """`alone`: requests come one at a time, and find an empty cache, whose shapes are not those of earlier ones."""
        self._model = model
        self._weights = weights
        self._writer = writer
        self._limit = max_sequences
        self._torch_threads = torch_threads
        self._alone = alone
        self._wake = threading.Condition()
        self._inbox: deque[Command] = deque()
        self._closing = False
        self._broken: BaseException | None = None
        self._line = WaitingLine()
        self._admitting: list[Sample] = []
        self._batch = DecodeBatch(model.device)
        self._generated = 0
        self._seconds = 0.0
        self.version = (0, 0)
        """(run epoch, policy step) of the live weights."""
        self._thread = threading.Thread(target=self._run, name="rollout-decode", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Hands a command over. Raises what broke the thread, or ShuttingDown after `close`."""
        with self._wake:
            if self._broken is not None:
                raise self._broken
            if self._closing:
                raise ShuttingDown("the rollout engine is closed")
            self._inbox.append(command)
            self._wake.notify()

    def cancel(self, command: Request | Swap) -> bool:
        """Withdraws a command; returns whether it was still waiting to be taken.

        A request that was taken is dropped as soon as the thread sees it; a swap that was taken goes on.
        """
        with self._wake:
            if command in self._inbox:
                self._inbox.remove(command)
                return True
            if isinstance(command, Request):
                self._inbox.append(Cancel(command))
                self._wake.notify()
            return False

    def statistics(self) -> EngineStatistics:
        """Counters since start."""
        return EngineStatistics(self._generated, self._seconds, len(self._batch))

    def close(self, timeout: float) -> bool:
        """Fails what is pending with ShuttingDown; returns whether the thread ended within `timeout` seconds."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: BaseException = ShuttingDown("the rollout engine is closed")
        try:
            if self._torch_threads is not None:
                torch.set_num_threads(self._torch_threads)
            with torch.inference_mode():
                while self._wait_for_work():
                    self._obey()
                    self._turn()
        except BaseException as cause:  # noqa: BLE001 - every caller gets it, now and later
            log.error("rollout engine broke", error=repr(cause))  # noqa: TRY400 - the callers get the traceback
            error = cause
        with self._wake:
            self._broken = error
            commands = list(self._inbox)
            self._inbox.clear()
        running = [sample.request for sample in (*self._admitting, *self._batch.samples)]
        self._admitting = []
        self._batch = DecodeBatch(self._model.device)
        for command in (*commands, *running, *self._line.take_all()):
            if not isinstance(command, Cancel):
                command.reply.fail(error)

    def _wait_for_work(self) -> bool:
        if len(self._batch) and not self._closing:
            return True
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._line or len(self._batch) or self._closing)
            return not self._closing

    def _obey(self) -> None:
        while self._inbox:
            with self._wake:
                command = self._inbox.popleft() if self._inbox else None
            match command:
                case Request():
                    self._line.join(command)
                case Cancel(request):
                    self._drop([request])
                case Swap():
                    self._swap(command)

    def _swap(self, command: Swap) -> None:
        try:
            self._weights.swap(command.tensors, command.checked_hash)
        except BaseException as error:
            command.reply.fail(error)
            raise
        self.version = (command.run_epoch, command.step)
        command.reply.give(self._weights.layout.manifest_hash)

    def _turn(self) -> None:
        started = time.perf_counter()
        try:
            self._admit()
            if len(self._batch):
                self._decode()
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            self._shrink(error)
        self._seconds += time.perf_counter() - started

    def _admit(self) -> None:
        epoch, step = self.version
        admission = self._line.admit(self._limit - len(self._batch), self._limit)
        if admission is None:
            return
        first = len(self._batch)
        if self._alone and first == 0:
            self._model.cache.drop()
        self._admitting = [Sample(request, index, step, epoch) for request, index in admission.samples]
        prompt_index = torch.tensor(admission.prompt_index, device=self._model.device)
        logits = self._model.prefill(admission.prompts, prompt_index, first)
        self._batch.append(self._admitting)
        self._admitting = []
        self._sample(first, logits[prompt_index])

    def _decode(self) -> None:
        batch = self._batch
        logits = self._model.decode(batch.last, batch.length, batch.longest)
        batch.advance()
        self._sample(0, logits)

    def _sample(self, first: int, logits: torch.Tensor) -> None:
        batch = self._batch
        tokens, logprobs = draw(logits, batch.uniforms(first), batch.knobs(first))
        ended = batch.record(first, tokens, logprobs, self._writer.is_end)
        self._generated += len(batch) - first
        rows = {first + row for row in ended.nonzero()[:, 0].tolist()}
        rows |= self._writer.stopped(batch, first, tokens)
        if rows:
            self._finish(sorted(rows))

    def _finish(self, rows: Sequence[int]) -> None:
        failed, poisoned = self._writer.write(self._batch, rows, newest_version=self.version[1])
        if poisoned:
            self._model.cache.wipe(poisoned)
        requests = {id(sample.request): sample.request for sample in (self._batch.samples[row] for row in rows)}
        self._remove(rows)
        self._drop(failed)
        for request in requests.values():
            done = request.finished()
            if done is not None:
                request.reply.give(done)

    def _drop(self, requests: Sequence[Request]) -> None:
        """Frees the rows and places of requests that nobody waits for."""
        for request in requests:
            self._line.leave(request)
        gone = {id(request) for request in requests}
        self._remove([row for row, sample in enumerate(self._batch.samples) if id(sample.request) in gone])

    def _remove(self, rows: Sequence[int]) -> None:
        if rows:
            longest = self._batch.longest
            self._model.cache.move(*self._batch.remove(rows), longest)

    def _shrink(self, error: RuntimeError) -> None:
        """Starts everything that runs again with half as many rows; at one row gives up on what runs."""
        unfinished = list(_unfinished([*self._batch.samples, *self._admitting]))
        self._admitting = []
        self._batch = DecodeBatch(self._model.device)
        self._model.cache.drop()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._limit == 1 or not unfinished:
            for request in {id(sample.request): sample.request for sample in unfinished}.values():
                self._line.leave(request)
                request.reply.fail(TandemError(f"out of memory with a single sequence: {error}"))
            return
        self._limit = max(1, min(self._limit, len(unfinished)) // 2)
        log.warning("out of memory, decoding fewer sequences together", max_sequences=self._limit, error=str(error))
        self._line.rejoin(unfinished)


def _unfinished(samples: Iterable[Sample]) -> Iterable[Sample]:
    return (sample for sample in samples if sample.request.completions[sample.index] is None)


def _out_of_memory(error: RuntimeError) -> bool:
    # The CPU's allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)
