"""Small files that a user names, read whole."""

from __future__ import annotations

from pathlib import Path

from common.errors import ConfigError


def read_plain_file(path: Path, max_bytes: int, shown: str) -> bytes:
    """The file's content. Raises ConfigError, which begins with `shown`, for what is no file, unreadable or too long."""
    # FIFOs and devices may never end.
    if path.exists() and not path.is_file():
        raise ConfigError(f"{shown}: is no plain file")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror}") from error
    if len(content) > max_bytes:
        raise ConfigError(f"{shown}: is longer than {max_bytes} bytes")
    return content
