"""The demo's model and its configurations."""

import importlib.resources
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config.load import load_config
from common.config.root import TandemConfig
from common.config.stages import stage_configs
from common.models.causal_lm import load_model
from common.models.tokenizer import load_tokenizer
from explorer_service.tasksets.digit_skills import SKILLS, is_held_out

FOLDER = importlib.resources.files("common.cli.demo")
HELD_OUT = [text for text in (f"{number:04d}" for number in range(10_000)) if is_held_out(text)][::12]


def config(name: str) -> TandemConfig:
    with importlib.resources.as_file(FOLDER / name) as path:
        return load_config(path, environ={})


@pytest.fixture(scope="module")
def greedy_answers() -> dict[str, str]:
    """Prompt to greedy answer, without a cache: nothing of the explorer's engine is in it."""
    model_config = config("demo.yaml").model
    model: Any = load_model(model_config, seed=0, dtype=torch.float32).eval()
    tokenizer: Any = load_tokenizer(model_config)
    prompts = [f"{letter}{digits}=" for letter in SKILLS for digits in HELD_OUT]
    tokens = torch.tensor([tokenizer.encode(prompt) for prompt in prompts])
    with torch.no_grad():
        for _ in range(5):
            tokens = torch.cat([tokens, model(input_ids=tokens).logits[:, -1:].argmax(-1)], 1)
    answers = tokenizer.batch_decode(tokens[:, 6:])
    return dict(zip(prompts, answers, strict=True))


def test_the_model_knows_the_skills(greedy_answers: dict[str, str]) -> None:
    known = [
        answer in {f"{skill(prompt[1:5])}<eos>" for skill in SKILLS.values()}
        for prompt, answer in greedy_answers.items()
    ]
    assert sum(known) / len(known) > 0.9


def test_the_model_does_not_know_what_the_letters_mean(greedy_answers: dict[str, str]) -> None:
    right = [answer == f"{SKILLS[prompt[0]](prompt[1:5])}<eos>" for prompt, answer in greedy_answers.items()]
    # One skill in four by chance, and a little more where two skills give the same digits.
    assert 0.2 < sum(right) / len(right) < 0.35


def test_the_model_is_small_enough_to_ship() -> None:
    size = sum(Path(str(file)).stat().st_size for file in (FOLDER / "skills").iterdir())
    assert size < 1_500_000


def test_from_scratch_ends_with_the_demo() -> None:
    demo, (sft, grpo) = config("demo.yaml"), stage_configs(config("from_scratch.yaml"))
    differing = {"model", "stage_name"}
    assert grpo.model_dump(exclude=differing) == demo.model_dump(exclude=differing)
    assert grpo.model.max_length == sft.model.max_length == demo.model.max_length
    assert grpo.model.path == str(sft.stage_folder / "result")


def test_from_scratch_makes_the_shipped_architecture() -> None:
    made = load_model(stage_configs(config("from_scratch.yaml"))[0].model, seed=0, dtype=torch.float32)
    shipped = load_model(config("demo.yaml").model, seed=0, dtype=torch.float32)
    assert {name: tensor.shape for name, tensor in made.state_dict().items()} == {
        name: tensor.shape for name, tensor in shipped.state_dict().items()
    }
