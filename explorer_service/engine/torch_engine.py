"""The rollout engine that runs a transformers model in this process, with continuous batching."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from common.config.explorer import SamplingConfig
from common.config.root import TandemConfig
from common.errors import ConfigError, LimitExceeded, MalformedData, WaitTimedOut
from common.experience.experience import IntArray
from common.models.causal_lm import end_token_ids, load_model
from common.models.tokenizer import load_tokenizer
from common.weights.manifest import Manifest
from explorer_service.engine.base import Completion, EngineStatistics
from explorer_service.engine.completions import CompletionWriter
from explorer_service.engine.decode_thread import DecodeThread
from explorer_service.engine.live_weights import LiveWeights
from explorer_service.engine.requests import Reply, Request, Swap
from explorer_service.engine.slot_model import SlotModel

_CLOSE_SECONDS = 30.0
"""A decode step or a weight swap may have to end first; both take far less."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchRolloutEngine:
    """Samples from any `AutoModelForCausalLM`; see `RolloutEngine` for the contract.

    Making one blocks for as long as loading the model takes. Given the same seed, a sample's random numbers are the same
    whatever else is decoded; only rounding in the logits depends on the batch. With `run.deterministic` one request is
    decoded at a time, in a cache of its own, and depends to the bit on its arguments and the weights alone. A sequence
    that spans run epochs counts to the older one.
    """

    def __init__(self, config: TandemConfig, *, model: Any = None, tokenizer: Any = None) -> None:
        """Loads what is not given. Raises ConfigError when the model cannot be run by this engine."""
        self._max_length = config.model.max_length
        self._swap_seconds = config.sync.timeout
        dtype = _DTYPES[config.model.rollout_dtype or config.model.dtype]
        device = _device(config)
        if model is None:
            model = load_model(config.model, seed=config.run.seed, dtype=dtype)
        tokenizer = load_tokenizer(config.model) if tokenizer is None else tokenizer
        model = model.to(device).eval().requires_grad_(requires_grad=False)
        _check_positions(model, self._max_length)
        ends = end_token_ids(model, tokenizer)
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._weights = LiveWeights(model, dtype)
        self._turn = asyncio.Semaphore(1) if config.run.deterministic else contextlib.nullcontext()
        self._seeds = np.random.default_rng([config.run.seed, zlib.crc32(config.explorer.id.encode())])
        self._thread = DecodeThread(
            SlotModel(model, device, autocast=config.explorer.autocast),
            self._weights,
            CompletionWriter(tokenizer, ends, self._vocabulary, device),
            max_sequences=config.explorer.max_sequences,
            torch_threads=config.explorer.threads,
            alone=config.run.deterministic,
        )

    @property
    def layout_hash(self) -> str:
        """`Manifest.layout_hash` of the weights that it takes."""
        return self._weights.layout.layout_hash

    @property
    def layout(self) -> Manifest:
        """Names, dtypes, shapes and offsets of the weights that it takes, with the hashes of the live ones."""
        return self._weights.layout

    @property
    def version(self) -> tuple[int, int]:
        """(run epoch, policy step) of the live weights; (0, 0) before the first `apply`."""
        return self._thread.version

    async def generate(
        self, prompt: Sequence[int], n: int, sampling: SamplingConfig, seed: int | None = None
    ) -> list[Completion]:
        """Samples `n` continuations of the prompt's tokens. Cancelling it frees its sequences.

        Without a seed one is drawn from the engine's own stream. Raises LimitExceeded when the prompt leaves no room in
        `model.max_length`, MalformedData when it is empty or has a token that the model does not know.
        """
        if n < 1:
            raise MalformedData(f"asked for {n} samples; at least 1")
        ids = self._checked(prompt)
        limit = min(sampling.max_tokens, self._max_length - len(ids))
        drawn = int(self._seeds.integers(1 << 63)) if seed is None else seed % (1 << 64)
        request = Request(ids, n, sampling, limit, drawn, Reply())
        async with self._turn:
            self._thread.submit(request)
            try:
                return await request.reply.future
            except asyncio.CancelledError:
                self._thread.cancel(request)
                raise

    async def apply(
        self, tensors: Mapping[str, torch.Tensor], run_epoch: int, step: int, *, checked_hash: str = ""
    ) -> str:
        """Swaps the weights in between two decode steps; returns the manifest hash of the live weights after it.

        The tensors must not change before it returns or raises. Raises, with nothing touched, ManifestMismatch or
        NonFiniteWeights when the tensors are not fit, and WaitTimedOut when no gap came within `sync.timeout`.
        """
        self._weights.check_layout(tensors)
        checked_hash = checked_hash or await asyncio.to_thread(self._weights.check_content, tensors)
        swap = Swap(tensors, run_epoch, step, checked_hash, Reply())
        self._thread.submit(swap)
        try:
            await asyncio.wait([swap.reply.future], timeout=self._swap_seconds)
        except asyncio.CancelledError:
            if not self._thread.cancel(swap):
                # It is being copied right now, which takes moments; the caller may reuse the tensors after this.
                await asyncio.wait([swap.reply.future], timeout=_CLOSE_SECONDS)
            raise
        if not swap.reply.future.done() and self._thread.cancel(swap):
            raise WaitTimedOut(f"no weight swap within {self._swap_seconds} s (sync.timeout)")
        return await swap.reply.future

    def statistics(self) -> EngineStatistics:
        """Counters since start."""
        return self._thread.statistics()

    async def close(self) -> None:
        """Stops its thread; pending calls fail with ShuttingDown. Closing twice is fine."""
        if not await asyncio.to_thread(self._thread.close, _CLOSE_SECONDS):
            raise WaitTimedOut(f"the decode thread did not end within {_CLOSE_SECONDS} s")

    def _checked(self, prompt: Sequence[int]) -> IntArray:
        if not 0 < len(prompt) < self._max_length:
            raise LimitExceeded(f"a prompt has {len(prompt)} tokens; model.max_length is {self._max_length}")
        ids = np.asarray(prompt)
        if not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= self._vocabulary:
            raise MalformedData(f"a prompt has tokens outside 0 to {self._vocabulary - 1}")
        return ids.astype(np.int32)


def _device(config: TandemConfig) -> torch.device:
    name = config.explorer.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("explorer.device: cuda, and this machine has none; use cpu or auto")
        torch.backends.cuda.matmul.allow_tf32 = config.explorer.tf32
    return torch.device(name)


def _check_positions(model: Any, max_length: int) -> None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and positions < max_length:
        raise ConfigError(f"model.max_length: {max_length}, and the model has positions for {positions}")
