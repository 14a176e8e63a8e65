"""The services wait for events, never by looking again and again: under a clock that only moves when nothing happens."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from common.errors import PeerUnavailable
from common.rpc.channel import open_channel
from common.rpc.stubs import trainer_stub
from explorer_service import server as explorer_server
from explorer_service.server import parse_push_request
from protos.tandem.v1 import trainer_pb2
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import InProcessPair, in_process
from tests.support.virtual_clock import VirtualClockLoop, run_virtually
from trainer_service.engine.torch_engine import TorchTrainEngine
from trainer_service.trainer import Trainer

STEPS = 3


class Watched:
    """When, by the loop's clock, each step ended and each version's first message arrived."""

    def __init__(self, loop: VirtualClockLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[float] = []
        self.offers: dict[int, float] = {}
        train_step = TorchTrainEngine.train_step

        def step(engine: TorchTrainEngine, batch: Any) -> Any:
            result = train_step(engine, batch)
            self.steps.append(loop.time())
            return result

        def parse(data: bytes) -> Any:
            request = parse_push_request(data)
            if hasattr(request, "offer") and request.offer.version.step:
                self.offers.setdefault(request.offer.version.step, loop.time())
            return request

        monkeypatch.setattr(TorchTrainEngine, "train_step", step)
        monkeypatch.setattr(explorer_server, "parse_push_request", parse)


@pytest.mark.parametrize("style", ["fixed", "trainer_driven", "fully_async"])
def test_a_version_is_on_its_way_the_moment_its_step_is_done(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualClockLoop) -> None:
        watched = Watched(loop, monkeypatch)
        config = pair_config(tmp_path, {"sync": {"style": style}, "trainer": {"total_steps": STEPS}})
        async with in_process(config) as pair:
            pair.start_explorer()
            pair.start_trainer()
            await pair.both_end()
        assert len(watched.steps) == STEPS
        assert {step: watched.offers.get(step) for step in (1, 2, 3)} == dict(enumerate(watched.steps, start=1))

    run_virtually(main, monkeypatch, patience=3.0)


def test_an_explorer_without_a_trainer_only_waits_for_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualClockLoop) -> None:
        config = pair_config(tmp_path, {"explorer": {"trainer": None, "peer_timeout": 60}})
        async with in_process(config) as pair:
            with pytest.raises(PeerUnavailable):
                await pair.start_explorer()
        assert loop.time() == pytest.approx(60)
        # One for the log of waits that last, one for the deadline; what polled once a second would make sixty.
        assert len(loop.jumps) <= 4, loop.jumps

    run_virtually(main, monkeypatch, patience=0.5)


def test_a_paused_pair_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualClockLoop) -> None:
        config = pair_config(tmp_path, {"trainer": {"total_steps": None}})
        async with in_process(config) as pair:
            pair.start_explorer()
            pair.start_trainer()
            await paused(pair, monkeypatch)
            began = len(loop.jumps)
            await asyncio.sleep(59)
            assert len(loop.jumps) - began <= 6, loop.jumps

    run_virtually(main, monkeypatch, patience=0.5)


async def paused(pair: InProcessPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns when the trainer has done a step, and starts no further one."""
    stepped = asyncio.Event()
    log = Trainer._log

    def logged(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        log(trainer, *args, **kwargs)
        stepped.set()

    monkeypatch.setattr(Trainer, "_log", logged)
    await stepped.wait()
    async with open_channel(pair.config.trainer.address, pair.config.limits) as channel:
        await trainer_stub(channel).Pause(trainer_pb2.PauseRequest())
