"""The train engine on PyTorch: one model, one device.

Shape letters: `N` sequences, `A` action tokens of the batch (or, in a micro-batch, of it).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from common.config.root import TandemConfig
from common.errors import CheckpointInvalid, ManifestMismatch, TrainingDiverged
from common.models.causal_lm import load_model, load_rollout_state
from common.models.tokenizer import load_tokenizer
from common.weights.manifest import Manifest, build_manifest
from trainer_service.algorithm.presets import resolve_algorithm
from trainer_service.engine.base import StepResult, TrainBatch, WeightsSnapshot
from trainer_service.engine.capture import TorchCapture, master_tensors
from trainer_service.engine.device import choose_device, prepare_device, prepare_model
from trainer_service.engine.export import WeightExporter
from trainer_service.engine.logprobs import PolicyHead
from trainer_service.engine.metrics import StepMetrics
from trainer_service.engine.moments import check_moments, copy_moments, restore_moments
from trainer_service.engine.optimizer import Schedule, build_optimizer, clip_gradients, gradients
from trainer_service.engine.packing import pack
from trainer_service.engine.state import (
    FORMAT,
    MODEL_FILE,
    OPTIMIZER_FILE,
    EngineState,
    read_state,
    read_tensors,
    rng_from_hex,
    rng_to_hex,
)
from trainer_service.engine.update import Computation, StepInputs, accumulate_gradients, make_inputs

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchTrainEngine:
    """Implements `TrainEngine`.

    `model` and `tokenizer` stand in for what the configuration names, for tests and for who has them loaded; the engine
    owns the model from then on. With a KL penalty the reference is a frozen copy of the model as constructed: after a
    resume it is made again from the same source, and `load` checks that it is the same one. The learning rate's clock
    counts train steps, skipped ones included.
    """

    def __init__(
        self, config: TandemConfig, total_steps: int | None, *, model: Any | None = None, tokenizer: Any | None = None
    ) -> None:
        self._algorithm = resolve_algorithm(config.algorithm)
        self._schedule = Schedule(config.algorithm.optimizer, total_steps)
        device = choose_device(config.trainer)
        prepare_device(config.trainer, device, deterministic=config.run.deterministic)
        self._computation = Computation(device, config.trainer.autocast, config.trainer.microbatch_tokens)
        master = DTYPES[config.model.dtype]
        self._tokenizer = load_tokenizer(config.model) if tokenizer is None else tokenizer
        self._model = load_model(config.model, seed=config.run.seed, dtype=master) if model is None else model
        self._model.to(device)
        prepare_model(self._model, checkpointing=False)
        self._vocabulary = int(self._model.config.get_text_config().vocab_size)
        self._reference, self._reference_hash = self._freeze_reference()
        prepare_model(self._model, checkpointing=config.trainer.gradient_checkpointing)
        self._head = PolicyHead(self._model)
        self._optimizer = build_optimizer(self._model.parameters(), config.algorithm.optimizer)
        self._exporter = WeightExporter(self._model, DTYPES[config.model.rollout_dtype or config.model.dtype])
        self._manifest: Manifest | None = None
        self._shuffle = torch.Generator().manual_seed(config.run.seed)
        self._steps = 0
        self._skipped = 0
        self._in_a_row = 0

    def _freeze_reference(self) -> tuple[PolicyHead | None, str]:
        """The KL penalty's reference and its manifest hash; (None, "") without a penalty."""
        if self._algorithm.config.kl.coefficient == 0:
            return None, ""
        reference = copy.deepcopy(self._model).requires_grad_(requires_grad=False)
        weights = {name: tensor.cpu() for name, tensor in master_tensors(reference).items()}
        return PolicyHead(reference), build_manifest(weights).manifest_hash

    @property
    def layout(self) -> Manifest:
        """Manifest of the exported weights (hashes of the current ones)."""
        if self._manifest is None:
            self._manifest = self._exporter.export().manifest
        return self._manifest

    def train_step(self, batch: TrainBatch) -> StepResult:
        """Advantages, loss, gradients, update.

        An update whose loss or gradient is not finite is left out, with the rest of its step; weights and optimizer
        stay as they were before it. Raises TrainingDiverged after `max_nonfinite_steps` of these in a row, and
        MalformedData for a batch whose parts do not fit together.
        """
        packed = pack(batch, self._vocabulary)
        advantages = self._algorithm.advantage(batch.rewards, batch.group_index, self._algorithm.config)
        inputs = make_inputs(packed, advantages, batch.temperature, self._computation, self._reference)
        rate = self._schedule.rate(self._steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        metrics = StepMetrics()
        done, finite = self._run_updates(inputs, metrics)
        self._steps += 1
        self._skipped += not finite
        self._in_a_row = 0 if finite else self._in_a_row + 1
        allowed = self._algorithm.config.max_nonfinite_steps
        if self._in_a_row > allowed:
            raise TrainingDiverged(
                f"{self._in_a_row} steps in a row had a non-finite loss or gradient; "
                f"algorithm.max_nonfinite_steps is {allowed}. The weights are those before them."
            )
        counts = {
            "lr": rate,
            "train/tokens": float(packed.position.numel()),
            "train/sequences": float(packed.lengths.numel()),
            "train/skipped_steps": float(self._skipped),
        }
        return StepResult(applied=finite or done > 0, metrics={**metrics.read(done + (not finite)), **counts})

    def _run_updates(self, inputs: StepInputs, metrics: StepMetrics) -> tuple[int, bool]:
        """Runs the step's updates; returns how many were applied, and whether none was stopped by a non-finite number."""
        config = self._algorithm.config
        done = 0
        for _ in range(config.epochs_per_step):
            for sequences in self._mini_batches(inputs.packed.lengths.numel()):
                applied = self._update(inputs, sequences, metrics, first=done == 0)
                if applied is False:
                    return done, False
                done += applied is True
        return done, True

    def _mini_batches(self, sequences: int) -> Sequence[torch.Tensor]:
        parts = min(self._algorithm.config.minibatches, sequences)
        if parts == 1:
            return [torch.arange(sequences)]
        return torch.randperm(sequences, generator=self._shuffle).tensor_split(parts)

    def _update(self, inputs: StepInputs, sequences: torch.Tensor, metrics: StepMetrics, *, first: bool) -> bool | None:
        """One optimizer update: True when applied, False when not finite, None when there was nothing to train on."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = accumulate_gradients(
            self._head, self._algorithm, inputs, sequences, self._computation, metrics, first=first
        )
        if loss is None:
            return None
        grads = gradients(self._optimizer)
        norm = torch.nn.utils.get_total_norm(grads, foreach=True)
        metrics.add_norm(norm)
        # The one wait for the device before the update.
        finite = bool((loss.isfinite() & norm.isfinite()).item())
        if finite:
            clip_gradients(grads, norm, self._algorithm.config.optimizer.max_grad_norm)
            self._optimizer.step()
            self._manifest = None
        self._optimizer.zero_grad(set_to_none=True)
        return finite

    def export_weights(self) -> WeightsSnapshot:
        """Copies the weights, in the rollout dtype. A snapshot that somebody still holds is never overwritten."""
        snapshot = self._exporter.export()
        self._manifest = snapshot.manifest
        return snapshot

    def capture(self) -> TorchCapture:
        """Copies weights, optimizer and RNG, so that they can be written while training goes on."""
        optimizer = self._algorithm.config.optimizer
        device = self._computation.device
        state = EngineState(
            format=FORMAT,
            steps=self._steps,
            skipped_steps=self._skipped,
            nonfinite_in_a_row=self._in_a_row,
            schedule={"name": optimizer.schedule, "lr": optimizer.lr},
            reference_hash=self._reference_hash,
            cpu_rng=rng_to_hex(torch.get_rng_state()),
            cuda_rng=rng_to_hex(torch.cuda.get_rng_state(device)) if device.type == "cuda" else "",
            shuffle_rng=rng_to_hex(self._shuffle.get_state()),
        )
        weights = {
            name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in master_tensors(self._model).items()
        }
        moments = copy_moments(self._optimizer, self._model)
        return TorchCapture(weights, moments, state, self._model, self._tokenizer)

    def load(self, folder: Path) -> None:
        """Restores what a capture wrote, bit by bit. Raises CheckpointInvalid; the engine is then as it was."""
        state = read_state(folder)
        if state.reference_hash != self._reference_hash:
            raise CheckpointInvalid(
                f"{folder} was trained against another reference model ({state.reference_hash or 'none'}) than the "
                f"configuration gives ({self._reference_hash or 'none'}): `model` or `algorithm.kl` has changed"
            )
        shuffle, cpu, cuda = (rng_from_hex(text) for text in (state.shuffle_rng, state.cpu_rng, state.cuda_rng))
        moments = read_tensors(folder / OPTIMIZER_FILE)
        parameters = dict(self._model.named_parameters())
        check_moments(moments, parameters)
        weights = read_tensors(folder / MODEL_FILE)
        try:
            generator = torch.Generator().set_state(shuffle)
            torch.Generator().set_state(cpu)
            load_rollout_state(self._model, weights)
        except (RuntimeError, TypeError, ManifestMismatch) as error:
            raise CheckpointInvalid(f"{folder} does not fit this engine: {error}") from error
        restore_moments(self._optimizer, moments, parameters)
        self._shuffle = generator
        torch.set_rng_state(cpu)
        if self._computation.device.type == "cuda" and cuda.numel():
            torch.cuda.set_rng_state(cuda, self._computation.device)
        self._steps, self._skipped, self._in_a_row = state.steps, state.skipped_steps, state.nonfinite_in_a_row
        self._manifest = None
