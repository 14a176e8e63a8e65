"""A child that ends with its parent, however the parent ends.

The parent keeps the write end of the child's standard input and writes nothing; the kernel closes it when the parent is
gone, even by SIGKILL. Linux's PR_SET_PDEATHSIG would do the same on Linux alone, and fires when the *thread* that started
the child ends; setting it by `preexec_fn` is unsafe once the parent has threads, and gRPC has some.
"""

from __future__ import annotations

import os
import signal
import threading
import time

END_WITH_STDIN = "TANDEM_END_WITH_STDIN"
"""Set to 1 by a parent that holds the child's standard input open for as long as it lives."""
DRAIN_SECONDS = 90.0
"""From SIGTERM to SIGKILL: a drain and a final checkpoint fit in, as in docker-compose.yml's stop_grace_period."""


def end_with_parent() -> None:
    """Sends this process SIGTERM when its parent is gone, if the parent asked for it; returns at once."""
    # Taken out, so that a child of this process does not watch a standard input that is none of its business.
    if os.environ.pop(END_WITH_STDIN, "") == "1":
        threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # closed or broken: whoever held it is gone too
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DRAIN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
