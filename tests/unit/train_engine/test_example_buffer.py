import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import CheckpointInvalid, ConfigError
from common.models.tokenizer import character_tokenizer
from tests.support.train_batches import CHARACTERS, tiny_engine
from trainer_service.buffer.examples import ExampleBuffer

TOKENIZER = character_tokenizer(CHARACTERS)
EOS = TOKENIZER.eos_token_id


def write(folder: Path, count: int = 7) -> Path:
    path = folder / "examples.jsonl"
    lines = [json.dumps({"prompt": f"{number}+", "response": "a" * number, "other": 1}) for number in range(count)]
    path.write_text("\n\n".join(lines) + "\n")
    return path


def buffer(path: Path, **changes: Any) -> ExampleBuffer:
    settings = {"batch_size": 3, "shuffle": False, "epochs": 1, "seed": 0, "max_length": 20, **changes}
    return ExampleBuffer(path, TOKENIZER, **settings)


def texts(examples: ExampleBuffer, batches: int = 1000) -> list[list[str]]:
    result = []
    for _, batch in zip(range(batches), examples, strict=False):
        bounds = batch.token_offsets.tolist()
        result.append([TOKENIZER.decode(batch.tokens[a:b].tolist()) for a, b in itertools.pairwise(bounds)])
    return result


def test_a_batch_is_prompt_response_and_end_token_trained_after_the_prompt(tmp_path: Path) -> None:
    batch = next(buffer(write(tmp_path)))
    plus, a = TOKENIZER.convert_tokens_to_ids(["+", "a"])
    zero, one, two = TOKENIZER.convert_tokens_to_ids(["0", "1", "2"])
    assert batch.tokens.tolist() == [zero, plus, EOS, one, plus, a, EOS, two, plus, a, a, EOS]
    assert batch.token_offsets.tolist() == [0, 3, 7, 12]
    assert batch.prompt_lengths.tolist() == [2, 2, 2]
    assert batch.action_mask.tolist() == [True] * 6
    assert batch.logprobs.tolist() == [0.0] * 6
    assert batch.group_index.tolist() == [0, 1, 2]


def test_batches_go_on_over_epochs_and_only_the_last_is_smaller(tmp_path: Path) -> None:
    batches = texts(buffer(write(tmp_path), epochs=2, batch_size=4))
    assert [len(batch) for batch in batches] == [4, 4, 4, 2]
    flat = [text for batch in batches for text in batch]
    assert flat[:7] == flat[7:]


def test_each_epoch_has_every_example_in_a_new_order(tmp_path: Path) -> None:
    flat = [text for batch in texts(buffer(write(tmp_path, 9), epochs=2, shuffle=True)) for text in batch]
    plain = [text for batch in texts(buffer(write(tmp_path, 9))) for text in batch]
    assert sorted(flat[:9]) == sorted(flat[9:]) == sorted(plain)
    assert flat[:9] != flat[9:]


@pytest.mark.parametrize("consumed", range(7))
def test_a_restored_cursor_goes_on_where_it_was_at_every_boundary(tmp_path: Path, consumed: int) -> None:
    path = write(tmp_path)
    whole = texts(buffer(path, epochs=3, shuffle=True))
    first = buffer(path, epochs=3, shuffle=True)
    begun = texts(first, consumed)
    second = buffer(path, epochs=3, shuffle=True)
    second.restore(json.loads(json.dumps(first.state())))
    assert begun + texts(second) == whole


def test_without_epochs_it_never_ends(tmp_path: Path) -> None:
    assert len(texts(buffer(write(tmp_path), epochs=None), 50)) == 50


def test_a_cursor_of_other_examples_is_refused(tmp_path: Path) -> None:
    examples = buffer(write(tmp_path))
    (tmp_path / "other").mkdir()
    state = buffer(write(tmp_path / "other", 6)).state()
    with pytest.raises(CheckpointInvalid, match="other examples"):
        examples.restore(state)
    with pytest.raises(CheckpointInvalid, match="whole number"):
        examples.restore({**examples.state(), "consumed": -1})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "object is needed, not list"),
        ('{"prompt": "1"}', r"'response' is missing.*texts prompt and response"),
        ('{"prompt": 1, "response": "a"}', "'prompt' is int"),
        ('{"prompt": "", "response": "a"}', "at least 1 is needed"),
        ('{"prompt": "1", "response": "z"}', "cannot encode 'z'"),
        ('{"prompt": "1", "response": "aaaaaaaaaaaaaaaaaaa"}', r"21 tokens.*max_length is 20"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(f'{{"prompt": "1", "response": "a"}}\n\n{line}\n')
    with pytest.raises(ConfigError, match=rf"examples\.jsonl:3: .*{message}"):
        buffer(path)


def test_a_file_that_is_none_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no file"):
        buffer(tmp_path)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="no examples"):
        buffer(tmp_path / "empty")


def test_fine_tuning_on_a_file_learns_it(tmp_path: Path) -> None:
    engine = tiny_engine(algorithm={"name": "sft", "optimizer": {"lr": 0.02}})
    losses = [engine.train_step(batch).metrics["loss/policy"] for batch in buffer(write(tmp_path), epochs=20)]
    assert losses[-1] < losses[0] / 4
