"""The progress of a run: a small picture that renews itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from common.cli.picture import line, picture
from common.cli.run_view import RunView

REFRESH_SECONDS = 0.5
"""Between two pictures."""
PLAIN_SECONDS = 5.0
"""Between two plain lines, where something has changed."""
PLAIN_QUIET_SECONDS = 60.0
"""Between two plain lines, where nothing has."""


def say(console: Console, text: Text) -> None:
    """Prints a paragraph: wrapped between words on a terminal, one line in a pipe, and there at once."""
    console.print(text, soft_wrap=not console.is_terminal)
    console.file.flush()


class Display(Protocol):
    """Shows a run to a person."""

    def show(self, view: RunView) -> None:
        """Called twice a second."""

    def note(self, text: str) -> None:
        """A sentence that stays."""

    def close(self) -> None:
        """Nothing more comes."""


def make_display(console: Console) -> Display:
    """By what the console is."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class LiveDisplay:
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Renewed by `show` alone: rich's own thread would wake up ten times a second beside the training.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, view: RunView) -> None:
        """See `Display`."""
        self._live.update(picture(view, time.time(), time.monotonic()), refresh=True)

    def note(self, text: str) -> None:
        """See `Display`."""
        self._console.print(Text(text, style="yellow"))

    def close(self) -> None:
        """See `Display`."""
        self._live.stop()


class PlainDisplay:
    """For logs and pipes: a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed_at = -PLAIN_QUIET_SECONDS
        self._printed: tuple[object, ...] = ()

    def show(self, view: RunView) -> None:
        """See `Display`."""
        now = time.monotonic()
        state = (view.stage, view.step, view.explore_step, view.trainer.state, view.explorer.state, len(view.held_out))
        quiet = now - self._printed_at
        if quiet < PLAIN_SECONDS or (state == self._printed and quiet < PLAIN_QUIET_SECONDS):
            return
        self._printed_at, self._printed = now, state
        self._print(line(view, time.time(), now))

    def note(self, text: str) -> None:
        """See `Display`."""
        self._print(text)

    def close(self) -> None:
        """See `Display`."""

    def _print(self, text: str) -> None:
        say(self._console, Text(text))
