"""The keys that the configuration knows, and the one that somebody meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_NEAR = 0.6
"""Similarity from which a suggestion helps; difflib's own default."""
_SIBLING_BONUS = 0.15
"""A near name in the same section is likelier than the same name elsewhere only when it is a typing error."""
_INITIALS = 0.9
"""Similarity of a spelt-out name to its abbreviation."""
_MAX_SUGGESTIONS = 2


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """All dotted keys below a model with their fields, sections before what is in them.

    What stands in the items of a list goes by the list's name: `explorers.address`.
    """
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{name}"
        yield dotted, field
        section = section_of(field.annotation)
        if section is not None:
            yield from walk(section, f"{dotted}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a field's type is, or contains (`Section | None`, `tuple[Section, ...]`)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        section = section_of(part)
        if section is not None:
            return section
    return None


def takes_text_only(annotation: Any) -> bool:
    """Whether a field is plain text (`str`, `str | None`), so that `007` given for it is no number."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return takes_text_only(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return bool(parts) and all(takes_text_only(part) for part in parts)
    return annotation is str


def suggest(unknown: str, model: type[BaseModel]) -> str:
    """A sentence that names the nearest valid keys, or else those of the section that the key is in."""
    parent, _, leaf = unknown.rpartition(".")
    known = [dotted for dotted, _ in walk(model)]
    scores = {dotted: _similarity(leaf, dotted.rpartition(".")) for dotted in known}
    for dotted in known:
        if dotted.rpartition(".")[0] == parent and scores[dotted] >= _NEAR:
            scores[dotted] += _SIBLING_BONUS
    best = max(scores.values(), default=0.0)
    if best >= _NEAR:
        near = [f"`{dotted}`" for dotted in known if scores[dotted] == best][:_MAX_SUGGESTIONS]
        return f"did you mean {' or '.join(near)}?"
    siblings = [f"`{dotted}`" for dotted in known if dotted.rpartition(".")[0] == parent]
    return f"known here: {', '.join(siblings)}" if siblings else ""


def _similarity(leaf: str, candidate: tuple[str, str, str]) -> float:
    initials = "".join(word[:1] for word in leaf.lower().split("_"))
    if len(initials) > 1 and initials == candidate[2]:  # learning_rate, of lr
        return _INITIALS
    return difflib.SequenceMatcher(None, leaf.lower(), candidate[2]).ratio()
