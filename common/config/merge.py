"""Plain nested mappings: looking into them, laying one over another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A new mapping: sections are merged key by key, everything else (lists too) is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def at(tree: Mapping[str, Any], names: Sequence[str]) -> Any:
    """What stands at a path of keys; None when there is nothing."""
    node: Any = tree
    for name in names:
        if not isinstance(node, Mapping):
            return None
        node = node.get(name)
    return node
