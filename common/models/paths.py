"""Where the files of a model or tokenizer are: a local folder, a hub id, or a folder inside a Python package."""

from __future__ import annotations

import importlib
import importlib.resources
import re
from pathlib import Path

from common.errors import ConfigError

PACKAGE_PREFIX = "package:"
_BRIEF = 400
_FOLDER_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_source(key: str, value: str) -> str:
    """What `from_pretrained` takes for this value of the configuration key: an absolute folder, or a hub id as it is.

    Raises ConfigError naming the key when it is neither; whether the hub has it is found out by loading.
    """
    if value.startswith(PACKAGE_PREFIX):
        return str(package_folder(key, value))
    folder = Path(value).expanduser()
    if value and folder.is_dir():
        return str(folder.resolve())
    if _HUB_ID.fullmatch(value) is None:
        raise ConfigError(
            f"{key}: there is no folder {value!r}, and it is no hub id (NAME or OWNER/NAME) or package:NAME/FOLDER"
        )
    return value


def is_local(source: str) -> bool:
    """Whether a resolved source is a folder of this machine: hub ids are never absolute."""
    return Path(source).is_absolute()


def brief(error: Exception) -> str:
    """The error's text on one line, cut: transformers lists all of its several hundred model classes in some."""
    text = " ".join(str(error).split())
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}..."


def package_folder(key: str, value: str) -> Path:
    """The folder that `package:NAME/FOLDER` names; never one outside the package, not even by a link.

    Raises ConfigError naming the key.
    """
    package, _, inside = value.removeprefix(PACKAGE_PREFIX).partition("/")
    parts = inside.split("/")
    if not all(part.isidentifier() for part in package.split(".")) or not all(map(_FOLDER_PART.fullmatch, parts)):
        raise ConfigError(f"{key}: {value!r} is not of the form package:NAME/FOLDER, with plain folder names")
    try:
        root = importlib.resources.files(importlib.import_module(package))
    except ImportError as error:
        raise ConfigError(f"{key}: the package of {value!r} cannot be imported: {error}") from error
    folder = root.joinpath(*parts)
    if not isinstance(folder, Path) or not folder.is_dir():
        raise ConfigError(f"{key}: package {package!r} has no folder {inside!r} on disk")
    resolved = folder.resolve()
    if not isinstance(root, Path) or not resolved.is_relative_to(root.resolve()):
        raise ConfigError(f"{key}: {value!r} leads out of package {package!r}")
    return resolved
