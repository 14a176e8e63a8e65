import pytest
import torch

from tests.support.tiny_models import FAMILIES, VOCABULARY, tiny_model
from tests.support.train_batches import make_batch
from trainer_service.engine import logprobs as module
from trainer_service.engine.logprobs import PolicyHead
from trainer_service.engine.packing import MicroBatch, micro_batches, pack

SEQUENCES = [((2, 3, 4, 9), (5, 6, 7, 8, 9, 10, 11)), ((9,), (8, 7)), ((1, 2), (3, 4, 5, 1))]


def micro_batch() -> MicroBatch:
    (micro,) = micro_batches(pack(make_batch(SEQUENCES), VOCABULARY), torch.arange(3), 1000)
    return micro


def expected(model: torch.nn.Module, temperature: float) -> tuple[list[float], list[float]]:
    """Each sequence alone, unpadded, in float64; in the order of the action tokens."""
    chosen: list[float] = []
    entropies: list[float] = []
    for prompt, response in SEQUENCES:
        tokens = [*prompt, *response]
        logits = model(input_ids=torch.tensor([tokens])).logits[0].double() / temperature
        distribution = logits - logits.logsumexp(-1, keepdim=True)
        for place in range(len(prompt), len(tokens)):
            row = distribution[place - 1]
            chosen.append(float(row[tokens[place]]))
            entropies.append(float(-(row.exp() * row).sum()))
    return chosen, entropies


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_gives_the_logprobs_of_its_own_forward_pass(family: str) -> None:
    model = tiny_model(family)
    micro = micro_batch()
    with torch.no_grad():
        statistics = PolicyHead(model).statistics(micro, 0.7, entropy_gradient=False)
        logprobs, entropies = expected(model, 0.7)
    order = micro.index.tolist()
    assert statistics.logprobs.dtype == torch.float32
    assert statistics.logprobs.tolist() == pytest.approx([logprobs[i] for i in order], rel=1e-4, abs=2e-4)
    assert statistics.entropy.tolist() == pytest.approx([entropies[i] for i in order], rel=1e-4, abs=2e-4)


def test_a_model_that_caps_its_logits_is_recognized() -> None:
    assert PolicyHead(tiny_model("llama"))._split
    assert not PolicyHead(tiny_model("gemma2"))._split


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_chunks_change_neither_numbers_nor_gradients(monkeypatch: pytest.MonkeyPatch, entropy_gradient: bool) -> None:
    model = tiny_model()
    results = []
    for size in (1 << 30, 4 * VOCABULARY * 3):
        monkeypatch.setitem(module.CHUNK_BYTES, "cpu", size)
        model.zero_grad()
        statistics = PolicyHead(model).statistics(micro_batch(), 0.7, entropy_gradient=entropy_gradient)
        (statistics.logprobs.sum() + (0.1 * statistics.entropy.sum() if entropy_gradient else 0)).backward()
        results.append((statistics, [parameter.grad.clone() for parameter in model.parameters()]))
    (whole, whole_grads), (parts, part_grads) = results
    torch.testing.assert_close(parts.logprobs, whole.logprobs)
    torch.testing.assert_close(parts.entropy, whole.entropy)
    torch.testing.assert_close(part_grads, whole_grads)


def test_greedy_sampling_is_compared_on_the_untempered_distribution() -> None:
    head = PolicyHead(tiny_model())
    with torch.no_grad():
        greedy = head.statistics(micro_batch(), 0.0, entropy_gradient=False)
        plain = head.statistics(micro_batch(), 1.0, entropy_gradient=False)
    assert torch.equal(greedy.logprobs, plain.logprobs)
