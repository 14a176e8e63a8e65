"""The reference of all configuration keys, made from the models: `python -m common.config.reference`."""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.config.keys import section_of
from common.config.root import TandemConfig

_INTRODUCTION = """\
# Configuration

One YAML file configures both services. This page is made from the models in `common/config`; do not edit it, run
`python -m common.config.reference > docs/configuration.md`.

Later ones win: the defaults below, the file, the environment, the command line.

```
python -m trainer_service --config run.yaml                       # the file
TANDEM__TRAINER__BATCH_SIZE=4 python -m trainer_service ...       # two underscores between the names
python -m trainer_service --config run.yaml --set trainer.batch_size=4 --set 'explorer.sampling.stop=["\\n"]'
tandem check run.yaml                                             # validates, prints the effective configuration
```

A value in the environment or after `--set` is YAML: `4`, `1e-6`, `true`, `null`, `[a, b]`, `{k: v}`. Unknown keys,
duplicate keys and settings that cannot work are refused before anything starts, with the key, the value and what is
allowed.

## Stages

`stages` runs several configurations one after the other in one run folder. Each stage has a `name` and overrides any key
of the file except `run`, `stages`, `plugins` and `security`; sections are merged key by key, lists are replaced. A stage after the
first starts from the result of the one before, with its tokenizer, unless it sets `model.path` or `model.architecture`.
An explicit `checkpoint.root` gets one folder a stage. On the command line a stage goes by its name.

```yaml
model: {path: my/base-model}
taskset: {name: jsonl, options: {path: tasks.jsonl}}
stages:
  - name: supervised
    algorithm: {name: sft}
    buffer: {source: file, path: examples.jsonl, epochs: 2}
  - name: grpo
    trainer: {total_steps: 200}   # tandem up run.yaml --set stages.grpo.trainer.total_steps=50
```

## Presets of the algorithm

`algorithm.name` chooses a preset; each of the keys `advantage`, `policy_loss` and `aggregation` that is set replaces the
preset's part.

- `grpo` (<https://arxiv.org/abs/2402.03300>): `group_normalized` advantages (the reward minus its group's mean, over its
  group's standard deviation), the loss `ppo_clip` on token ratios against the behaviour logprobs, `sequence_mean`.
- `dr_grpo` (<https://arxiv.org/abs/2503.20783>): `group_centered` advantages (the mean only: no weight for a group's
  spread), `ppo_clip`, `sequence_sum` (no weight for a response's length).
- `reinforce`: the `reward` itself as the advantage, the loss `reinforce` (advantage times logprob, no ratio),
  `sequence_sum`.
- `sft`: no advantages (`none`), the loss `sft` (negative log-likelihood of the responses), `token_mean`; needs no rewards
  and reads `buffer.source: file`.
"""


def reference() -> str:
    """The whole page, as Markdown."""
    parts = [_INTRODUCTION, "## Keys\n\n`-` in the column Default: the key must be given.\n"]
    parts.extend(_section(name, model) for name, model in _sections(TandemConfig, ""))
    return "\n".join(parts)


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """All sections with their dotted names, the root first."""
    yield prefix, model
    for name, field in model.model_fields.items():
        below = section_of(field.annotation)
        if below is not None:
            yield from _sections(below, f"{prefix}.{name}" if prefix else name)


def _section(name: str, model: type[BaseModel]) -> str:
    rows = [
        f"| `{key}` | {_type(field.annotation)} | {_default(field)} | {_allowed(field)} | {_cell(field.description or '')} |"
        for key, field in model.model_fields.items()
        if section_of(field.annotation) is None
    ]
    sections = [key for key, field in model.model_fields.items() if section_of(field.annotation) is not None]
    title = f"### `{name}`" if name else "### Top level"
    text = [title, "", inspect.getdoc(model) or "", ""]
    if rows:
        text += ["| Key | Type | Default | Allowed | Description |", "|---|---|---|---|---|", *rows, ""]
    if sections:
        text += [f"Sections: {', '.join(_linked(key, name, model) for key in sections)}.", ""]
    return "\n".join(text)


def _linked(key: str, parent: str, model: type[BaseModel]) -> str:
    dotted = f"{parent}.{key}" if parent else key
    field = model.model_fields[key]
    notes = []
    if get_origin(field.annotation) in (tuple, list):
        notes.append("a list")
    if type(None) in get_args(field.annotation):
        notes.append("may be absent")
    if field.is_required():
        notes.append("required")
    anchor = dotted.replace(".", "")
    return f"[`{dotted}`](#{anchor})" + (f" ({', '.join(notes)})" if notes else "")


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in arguments))
    if origin is Literal or (isinstance(annotation, type) and issubclass(annotation, enum.Enum)):
        return "text"
    if origin is tuple:
        items = [part for part in arguments if part is not Ellipsis]
        return f"list of {_type(items[0])}" if Ellipsis in arguments else f"list of {len(items)}: {_type(items[0])}"
    names = {int: "integer", float: "number", str: "text", bool: "boolean", Path: "path", dict: "mapping"}
    return "null" if annotation is type(None) else names[origin or annotation]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "-"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case enum.Enum():
            return str(value.value)
        case tuple() | list():
            return f"[{', '.join(_plain(item) for item in value)}]"
        case _:
            return str(value)


def _allowed(field: FieldInfo) -> str:
    """The values or the range, in words; empty where the type says it all."""
    choices = _choices(field.annotation)
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    bounds = []
    for rule in field.metadata:
        match rule:
            case annotated_types.Ge(ge):
                bounds.append(f"≥ {ge}")
            case annotated_types.Gt(gt):
                bounds.append(f"> {gt}")
            case annotated_types.Le(le):
                bounds.append(f"≤ {le}")
            case annotated_types.Lt(lt):
                bounds.append(f"< {lt}")
            case _:
                pattern = getattr(rule, "pattern", None)
                if pattern is not None:
                    bounds.append(f"matches `{pattern}`")
    return _cell(", ".join(bounds))


def _choices(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [str(member.value) for member in annotation]
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(reference())
