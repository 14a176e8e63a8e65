"""The engine's step beside an independent one: float64, one sequence at a time, plain loops over tokens."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from tests.support.train_batches import make_batch, random_batch, tiny_engine
from trainer_service.engine.base import TrainBatch


def reference_loss(
    model: Any, batch: TrainBatch, kind: str, aggregation: str, *, kl: float = 0, bonus: float = 0
) -> Any:
    """Loss of the batch under a float64 model, with the group's normalized advantages, clipping at 0.2."""
    frozen = copy.deepcopy(model)
    rewards, groups = batch.rewards.double().tolist(), batch.group_index.tolist()
    sequences = []
    after = 0
    for index, prompt in enumerate(batch.prompt_lengths.tolist()):
        begin, end = int(batch.token_offsets[index]), int(batch.token_offsets[index + 1])
        tokens = batch.tokens[begin:end].long()
        members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[index]]
        mean = sum(members) / len(members)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in members) / (len(members) - 1))
        advantage = (rewards[index] - mean) / (deviation + 1e-4)
        now = (model(input_ids=tokens[None]).logits[0] / batch.temperature).log_softmax(-1)
        then = (frozen(input_ids=tokens[None]).logits[0] / batch.temperature).log_softmax(-1).detach()
        losses = []
        for place in range(prompt, end - begin):
            if batch.action_mask[after]:
                logprob = now[place - 1, tokens[place]]
                ratio = (logprob - batch.logprobs[after].double()).exp()
                loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                if kind == "sft":
                    loss = -logprob
                difference = then[place - 1, tokens[place]] - logprob
                loss = loss + kl * (difference.exp() - 1 - difference)
                losses.append(loss + bonus * (now[place - 1].exp() * now[place - 1]).sum())
            after += 1
        if losses:
            sequences.append(losses)
    sums = [sum(losses) for losses in sequences]
    if aggregation == "token_mean":
        return sum(sums) / sum(len(losses) for losses in sequences)
    if aggregation == "sequence_mean":
        return sum(total / len(losses) for total, losses in zip(sums, sequences, strict=True)) / len(sums)
    return sum(sums) / len(sums)


CASES = [
    ("ppo_clip", "token_mean", 0.0, 0.0),
    ("ppo_clip", "sequence_mean", 0.0, 0.0),
    ("ppo_clip", "sequence_sum", 0.3, 0.0),
    ("ppo_clip", "sequence_mean", 0.0, 0.05),
    ("ppo_clip", "token_mean", 0.3, 0.05),
    ("sft", "token_mean", 0.0, 0.0),
]


@pytest.mark.parametrize("budget", [1, 40, 10_000])
@pytest.mark.parametrize(("kind", "aggregation", "kl", "bonus"), CASES)
def test_loss_gradient_and_update_are_the_reference_whatever_the_micro_batches(
    kind: str, aggregation: str, kl: float, bonus: float, budget: int
) -> None:
    engine = tiny_engine(
        algorithm={
            "policy_loss": kind,
            "aggregation": aggregation,
            "kl": {"coefficient": kl},
            "entropy_coefficient": bonus,
            # Clipping acts, and epsilon is large enough for a first step that depends on more than signs.
            "optimizer": {"lr": 0.1, "eps": 0.01, "max_grad_norm": 0.05, "weight_decay": 0.2},
        },
        trainer={"microbatch_tokens": budget},
    )
    batch = random_batch(3, count=8, temperature=0.8)
    model = copy.deepcopy(engine._model).double()
    loss = reference_loss(model, batch, kind, aggregation, kl=kl, bonus=bonus)
    loss.backward()
    norm = math.sqrt(sum(float(parameter.grad.square().sum()) for parameter in model.parameters()))

    metrics = engine.train_step(batch).metrics

    assert metrics["loss/total"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert metrics["grad/norm"] == pytest.approx(norm, rel=1e-4)
    assert norm > 0.05
    for (name, before), after in zip(model.named_parameters(), engine._model.parameters(), strict=True):
        gradient = before.grad * 0.05 / norm
        # AdamW's first step: both bias corrections give back the gradient itself.
        decayed = before * (1 - 0.1 * (0.2 if before.ndim > 1 else 0.0))
        stepped = decayed - 0.1 * gradient / (gradient.abs() + 0.01)
        torch.testing.assert_close(after.detach().double(), stepped.detach(), rtol=1e-4, atol=2e-6, msg=name)


def test_what_stands_at_masked_tokens_is_never_seen() -> None:
    clean = random_batch(5)
    assert not bool(clean.action_mask.all())
    poisoned = dataclasses.replace(clean, logprobs=clean.logprobs.masked_fill(~clean.action_mask, float("nan")))
    engines = [tiny_engine(), tiny_engine()]
    results = [engine.train_step(batch) for engine, batch in zip(engines, (clean, poisoned), strict=True)]
    assert results[0].metrics == results[1].metrics
    assert engines[0].layout.manifest_hash == engines[1].layout.manifest_hash


def test_only_action_tokens_are_trained() -> None:
    # Both batches train the same two tokens after the same context; what follows them differs and is masked.
    first = make_batch([((3, 4), (5, 6, 7))], masks=[[1, 1, 0]], rewards=[1.0])
    second = make_batch([((3, 4), (5, 6, 9))], masks=[[1, 1, 0]], rewards=[1.0])
    engines = [tiny_engine(algorithm={"name": "reinforce"}) for _ in range(2)]
    for engine, batch in zip(engines, (first, second), strict=True):
        assert engine.train_step(batch).metrics["train/tokens"] == 2
    assert engines[0].layout.manifest_hash == engines[1].layout.manifest_hash


def test_parity_is_zero_for_the_policys_own_logprobs_and_measures_a_difference() -> None:
    engine = tiny_engine()
    batch = random_batch(1, holes=False, temperature=0.7)
    own = []
    for index, prompt in enumerate(batch.prompt_lengths.tolist()):
        tokens = batch.tokens[batch.token_offsets[index] : batch.token_offsets[index + 1]].long()
        with torch.no_grad():
            distribution = (engine._model(input_ids=tokens[None]).logits[0] / 0.7).log_softmax(-1)
        own.append(distribution[:-1].gather(1, tokens[1:, None])[prompt - 1 :, 0])
    exact = torch.cat(own)
    shifted = exact.clone()
    shifted[3] += 0.5
    metrics = engine.train_step(dataclasses.replace(batch, logprobs=shifted)).metrics
    assert metrics["parity/max_logprob_diff"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["parity/mean_logprob_diff"] == pytest.approx(0.5 / exact.numel(), abs=1e-5)
    ratios = [1.0] * (exact.numel() - 1) + [math.exp(-0.5)]
    assert metrics["ratio/mean"] == pytest.approx(sum(ratios) / len(ratios), abs=1e-5)
    assert metrics["kl/behaviour"] == pytest.approx((math.exp(-0.5) - 1 + 0.5) / len(ratios), abs=1e-5)


def test_mini_batches_and_epochs_make_so_many_updates() -> None:
    engine = tiny_engine(algorithm={"minibatches": 3, "epochs_per_step": 2})
    engine.train_step(random_batch(0))
    assert {float(state["step"]) for state in engine._optimizer.state.values()} == {6.0}


def test_a_step_without_any_action_token_changes_nothing() -> None:
    engine = tiny_engine()
    before = engine.layout.manifest_hash
    result = engine.train_step(make_batch([((3,), (4, 5))], masks=[[0, 0]]))
    assert result.applied
    assert result.metrics["train/tokens"] == 0
    assert engine.layout.manifest_hash == before


def test_the_expected_metrics_are_there() -> None:
    wanted = "loss/policy loss/total grad/norm lr entropy/mean advantage/mean_abs train/tokens train/sequences"
    behaviour = "ratio/mean ratio/clip_fraction kl/behaviour parity/max_logprob_diff parity/mean_logprob_diff"
    batch = random_batch(2)
    plain = set(tiny_engine().train_step(batch).metrics)
    full = set(
        tiny_engine(algorithm={"kl": {"coefficient": 0.1}, "entropy_coefficient": 0.1}).train_step(batch).metrics
    )
    sft = set(tiny_engine(algorithm={"name": "sft"}).train_step(batch).metrics)
    assert plain == {*wanted.split(), *behaviour.split(), "train/skipped_steps"}
    assert full == plain | {"loss/kl", "loss/entropy", "kl/reference"}
    assert sft == {*wanted.split(), "train/skipped_steps"}


@pytest.mark.parametrize("settings", [{"gradient_checkpointing": True}, {"microbatch_tokens": 11}])
def test_saving_memory_does_not_change_the_step(settings: dict[str, Any]) -> None:
    plain, saving = tiny_engine(), tiny_engine(trainer=settings)
    batch = random_batch(4)
    expected = plain.train_step(batch).metrics
    assert saving.train_step(batch).metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_bfloat16_autocast_keeps_float32_masters_and_nearly_the_loss() -> None:
    plain, autocast = tiny_engine(), tiny_engine(trainer={"autocast": True})
    batch = random_batch(4)
    expected = plain.train_step(batch).metrics["grad/norm"]
    assert autocast.train_step(batch).metrics["grad/norm"] == pytest.approx(expected, rel=0.2)
    assert {parameter.dtype for parameter in autocast._model.parameters()} == {torch.float32}
