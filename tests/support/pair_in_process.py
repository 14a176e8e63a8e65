"""A trainer and an explorer as tasks of one event loop, with real servers and sockets between them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import transformers.models.llama.modeling_llama  # noqa: F401 - here, once: two threads that import it at a time fail, or hang
from transformers import PreTrainedTokenizerFast  # noqa: F401 - as above

from common.audit.ledger_files import FOLDER
from common.config.root import TandemConfig
from common.config.security import Role
from common.registry import load_plugins
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller
from common.rpc.stubs import explorer_stub, trainer_stub
from common.service import Signals, StageEnd
from explorer_service.app import run_stage as run_explorer_stage
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from tests.support.audited import audited_clean
from trainer_service.app import run_stage as run_trainer_stage

SECONDS = 100.0
"""Far more than a run takes; the machine may be busy."""
POLL_SECONDS = 0.02


@dataclass
class InProcessPair:
    """Both sides; start each with the configuration that it shall have."""

    config: TandemConfig
    signals: dict[str, Signals] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[StageEnd]] = field(default_factory=dict)

    def start_trainer(self, config: TandemConfig | None = None) -> asyncio.Task[StageEnd]:
        """Starts (again) the trainer's stage."""
        return self._start("trainer", run_trainer_stage, config)

    def start_explorer(self, config: TandemConfig | None = None, name: str = "explorer") -> asyncio.Task[StageEnd]:
        """Starts (again) the explorer's stage."""
        return self._start(name, run_explorer_stage, config)

    async def both_end(self) -> None:
        """Returns when both have ended without an error, and raises the first error."""
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self.tasks.values())

    async def failure(self, side: str) -> Exception:
        """The error that the side ends with."""
        async with asyncio.timeout(SECONDS):
            await asyncio.wait([self.tasks[side]])
        error = self.tasks[side].exception()
        assert isinstance(error, Exception), f"the {side} ended well"
        return error

    async def trainer_status(self) -> trainer_pb2.TrainerServiceGetStatusResponse:
        """GetStatus over the wire."""
        caller = Caller(self.config.security, Role.OPERATOR, Role.TRAINER)
        async with open_channel(self.config.trainer.address, self.config.limits, caller) as channel:
            return await trainer_stub(channel).GetStatus(trainer_pb2.TrainerServiceGetStatusRequest(), timeout=SECONDS)

    async def explorer_status(self) -> explorer_pb2.ExplorerServiceGetStatusResponse:
        """GetStatus over the wire."""
        caller = Caller(self.config.security, Role.OPERATOR, Role.EXPLORER)
        async with open_channel(self.config.explorer.address, self.config.limits, caller) as channel:
            return await explorer_stub(channel).GetStatus(
                explorer_pb2.ExplorerServiceGetStatusRequest(), timeout=SECONDS
            )

    async def until(self, status: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool]) -> Any:
        """The first status for which `holds`; an error of one of the sides is raised at once."""
        last: Any = None
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    for task in self.tasks.values():
                        if task.done() and task.exception() is not None:
                            task.result()
                    try:
                        last = await status()
                    except grpc.aio.AioRpcError:
                        last = None
                    if last is not None and holds(last):
                        return last
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise AssertionError(f"never came true; the last status: {last}") from None

    def _start(self, side: str, run_stage: Any, config: TandemConfig | None) -> asyncio.Task[StageEnd]:
        self.signals[side] = Signals()
        self.tasks[side] = asyncio.create_task(run_stage(config or self.config, self.signals[side]), name=side)
        return self.tasks[side]


@asynccontextmanager
async def in_process(config: TandemConfig) -> AsyncIterator[InProcessPair]:
    """The pair, nothing of it started; what still runs at the end is cancelled, and what it has left is audited."""
    load_plugins(config.plugins)
    pair = InProcessPair(config)
    try:
        yield pair
    finally:
        for task in pair.tasks.values():
            task.cancel()
        await asyncio.gather(*pair.tasks.values(), return_exceptions=True)
    if (config.stage_folder / FOLDER).exists():
        audited_clean(config.stage_folder)


async def kill(task: asyncio.Task[Any]) -> None:
    """Cancels one side: it tells nobody and saves nothing."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
