"""A service as a process: configuration, logging, signals, stages one after the other, and the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from common.config.root import TandemConfig
from common.config.stages import explorer_stage_configs, stage_configs
from common.errors import ConfigError, TandemError
from common.logging import bind_context, configure_logging
from common.registry import load_plugins

log = structlog.get_logger(__name__)

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2
EXIT_SIGNAL_BASE = 128
"""A service that a signal ended, after a clean drain, exits with this plus the signal's number: 130 or 143."""


class Signals:
    """SIGINT and SIGTERM as a request to end; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._on_signal: Callable[[int], None] | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes the two signals over, for this loop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._receive, int(number))

    def subscribe(self, on_signal: Callable[[int], None]) -> None:
        """Calls back with the signal's number; at once when it came before."""
        self._on_signal = on_signal
        if self.received is not None:
            on_signal(self.received)

    def _receive(self, number: int) -> None:
        if self.received is not None:
            log.error("killed", reason="a second signal; not waiting for the drain")
            os._exit(EXIT_SIGNAL_BASE + number)
        self.received = number
        log.info("signal_received", signal=signal.Signals(number).name)
        if self._on_signal is not None:
            self._on_signal(number)


@dataclass(frozen=True, slots=True)
class StageEnd:
    """How a stage ended without an error."""

    run_is_over: bool
    """True when no further stage should run: somebody asked for the end."""


RunStage = Callable[[TandemConfig, Signals], Awaitable[StageEnd]]


def run_service(service: Literal["trainer", "explorer"], config: TandemConfig, run_stage: RunStage) -> int:
    """Runs all stages, and returns the exit code. Every error that ends the run is logged with its cause."""
    configure_logging(config.monitor.log_level, config.monitor.log_format)
    bind_context(service=service, run=config.run.name)
    try:
        load_plugins(config.plugins)
        stages = stage_configs(config) if service == "trainer" else explorer_stage_configs(config)
        return asyncio.run(_run_stages(stages, run_stage))
    except ConfigError as error:
        log.error("bad_configuration", error=error.message)  # noqa: TRY400 - the message says it all
        return EXIT_BAD_CONFIG
    except TandemError as error:
        notes = getattr(error, "__notes__", [])
        log.error("run_failed", reason=error.reason, error=error.message, also=notes)  # noqa: TRY400 - as above
        return EXIT_FAILED
    except Exception as error:
        log.exception("run_failed", reason=type(error).__name__, error=str(error))
        return EXIT_FAILED


async def _run_stages(stages: list[TandemConfig], run_stage: RunStage) -> int:
    signals = Signals()
    signals.install(asyncio.get_running_loop())
    for stage in stages:
        bind_context(stage=stage.stage_name)
        log.info("stage_started", of=len(stages))
        end = await run_stage(stage, signals)
        if signals.received is not None:
            return EXIT_SIGNAL_BASE + signals.received
        log.info("stage_ended")
        if end.run_is_over:
            break
    return EXIT_FINISHED
