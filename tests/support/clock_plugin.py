"""Moves the wall clock of the process that loads it (`plugins`) by as many seconds as the file `CLOCK_FILE` says."""

import datetime as dt
import os
import time
from pathlib import Path

VARIABLE = "CLOCK_FILE"


def _install(path: Path) -> None:
    real = time.time

    def offset() -> float:
        return float(path.read_text() or 0) if path.exists() else 0.0

    class Moved(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Moved":
            return cls.fromtimestamp(real() + offset(), tz)

        @classmethod
        def utcnow(cls) -> "Moved":
            return cls.fromtimestamp(real() + offset(), dt.UTC).replace(tzinfo=None)

    time.time = lambda: real() + offset()
    time.time_ns = lambda: int((real() + offset()) * 1e9)
    dt.datetime = Moved  # type: ignore[misc]


if VARIABLE in os.environ:
    _install(Path(os.environ[VARIABLE]))
