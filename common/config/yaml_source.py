"""YAML as the configuration reads and writes it: bounded, without duplicate keys, with the scalars of YAML 1.2.

PyYAML resolves scalars as YAML 1.1 does: `1e-6` is a string there and `no` a boolean. Here numbers, booleans and null
are those of the YAML 1.2 core schema (https://yaml.org/spec/1.2.2/#103-core-schema), when reading and when writing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from common.errors import ConfigError

MAX_BYTES = 1 << 20
"""Of one file or value. The largest configuration of our own has 4 KiB."""
MAX_NODES = 100_000
"""Of one document, aliases expanded: ten lines of nested aliases can stand for billions."""
MAX_DEPTH = 64
"""Of nesting: PyYAML's composer recurses."""

_SCALARS = (
    ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("tag:yaml.org,2002:int", re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:merge", re.compile(r"^(?:<<)$"), "<"),
)  # fmt: skip


class _Loader(yaml.SafeLoader):
    """The safe loader, with 1.2 scalars; set up below."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML fills it for each class


class _Dumper(yaml.SafeDumper):
    """Quotes exactly what `_Loader` would not read back as a string."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML fills it for each class

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """Written out in full: an effective configuration is read by people."""
        return True


for _tag, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, _pattern, list(_first))


def _construct_int(loader: yaml.SafeLoader, node: ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    return int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse(text: str, origin: str) -> Any:
    """The value of one YAML document; None for an empty one. Raises ConfigError naming `origin` and the line."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{origin} is longer than {MAX_BYTES} bytes")
    try:
        _check_depth(text, origin)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count(node, {}, origin)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{origin} is not valid YAML: {error}") from error


def dump(value: Any) -> str:
    """YAML text in block style that `parse` reads back; mappings keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _check_depth(text: str, origin: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ConfigError(f"{origin} is nested deeper than {MAX_DEPTH} levels (line {_line(event)})")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _count(node: Node, sizes: dict[int, int | None], origin: str) -> int:
    """Nodes below this one with every alias expanded; refuses duplicate keys, cycles and bombs on the way."""
    known = sizes.get(id(node), 0)
    if known is None:
        raise ConfigError(f"{origin}: an alias refers to what contains it (line {_line(node)})")
    if known:
        return known
    sizes[id(node)] = None
    total = 1
    if isinstance(node, SequenceNode):
        total += sum(_count(child, sizes, origin) for child in node.value)
    elif isinstance(node, MappingNode):
        _check_keys(node, origin)
        total += sum(_count(key, sizes, origin) + _count(value, sizes, origin) for key, value in node.value)
    if total > MAX_NODES:
        raise ConfigError(f"{origin} has more than {MAX_NODES} values once its aliases are expanded")
    sizes[id(node)] = total
    return total


def _check_keys(node: MappingNode, origin: str) -> None:
    seen: set[Hashable] = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.tag != "tag:yaml.org,2002:str":
            shown = repr(key.value) if isinstance(key, ScalarNode) else "a collection"
            raise ConfigError(f"{origin}: key {shown} (line {_line(key)}) is not a string; quote it")
        if key.value in seen:
            raise ConfigError(f"{origin}: key {key.value!r} is given twice (line {_line(key)})")
        seen.add(key.value)


def _line(marked: Any) -> int:
    return int(marked.start_mark.line) + 1
