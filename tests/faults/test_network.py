"""What a network can do to a run: two explorers, each behind a proxy, and one fault after the other in the same run.

After each fault the run goes on, with both explorers; at its end the audit finds everything once.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.pair import Pair, Service, processes
from tests.support.pair_config import free_address, pair_settings
from tests.support.secured import certificate_settings
from tests.support.tcp_proxy import Direction, TcpProxy

pytestmark = pytest.mark.timeout(600)

RUNS = [
    "fully_async-shards-tls",
    pytest.param("fully_async-shards-plain", marks=pytest.mark.slow_faults),
    pytest.param("fixed-checkpoint-plain", marks=pytest.mark.slow_faults),
]
STEPS_AFTER = 3
RECOVERY_SECONDS = 60.0
"""Far more than keepalive (15 s) and the pauses between two attempts; the machine may be busy."""


@dataclass
class Network:
    """A run, and what is between its services."""

    pair: Pair
    style: str
    trainer: Service
    explorers: list[Service]
    proxies: list[TcpProxy]

    async def goes_on(self, explorers: int = 2, *, steps: int = STEPS_AFTER) -> None:
        """Waits until so many explorers are connected and steps are trained."""
        async with asyncio.timeout(RECOVERY_SECONDS):
            status = await self.trainer.until(lambda status: _connected(status) >= explorers)
            await self.trainer.until(lambda now, at=status.step + steps: now.step >= at)
        for service in (self.trainer, *self.explorers):
            assert service.process.poll() is None

    async def gets_stuck_on(self, index: int) -> None:
        """Waits until the trainer has noticed that the explorer is away."""
        async with asyncio.timeout(RECOVERY_SECONDS):
            await self.trainer.until(
                lambda status: not _by_name(status, f"explorer-{index}").connected  # type: ignore[no-any-return]
            )

    async def flips(self, direction: Direction, *, above: int) -> None:
        """Flips a bit in each of five pieces of more than so many bytes."""
        proxy = self.proxies[0]
        flipped = proxy.corrupted
        proxy.corrupt(direction, 5, above=above)
        async with asyncio.timeout(RECOVERY_SECONDS):
            await self.trainer.until(lambda _status: proxy.corrupted >= flipped + 5)

    async def trains_what_both_make(self) -> None:
        """Waits until something new of each explorer is received."""
        async with asyncio.timeout(RECOVERY_SECONDS):
            status = await self.trainer.status()
            before = {one.explorer_id: one.received_through for one in status.explorers}
            await self.trainer.until(
                lambda now: all(one.received_through > before[one.explorer_id] for one in now.explorers)
            )


def _connected(status: Any) -> int:
    return sum(one.connected for one in status.explorers)


def _by_name(status: Any, name: str) -> Any:
    return next(one for one in status.explorers if one.explorer_id == name)


@pytest.fixture(scope="module", params=RUNS)
async def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Network]:
    style, method, wire = request.param.split("-")
    folder = tmp_path_factory.mktemp("network")
    security = {"security": certificate_settings(folder / "certificates")} if wire == "tls" else {}
    addresses = [free_address(), free_address()]
    async with AsyncExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in addresses]
        settings = pair_settings(
            folder / "runs",
            {
                "trainer": {"total_steps": None, "batch_size": 4, "peer_timeout": 250, "explorer_timeout": 250},
                "explorer": {"trainer": None, "peer_timeout": 250},
                "explorers": [{"address": proxy.address} for proxy in proxies],
                "sync": {"style": style, "method": method, "offset": 1, "chunk_bytes": 4096},
                "checkpoint": {"save_interval": 5, "keep": 2},
                "taskset": {"reward": "slow_digits"},
                "monitor": {"log_format": "json"},
            },
            security,
        )
        pair = await stack.enter_async_context(processes(folder, settings))
        trainer = pair.start("trainer")
        explorers = [
            pair.start(
                "explorer",
                "--set",
                f"explorer.id=explorer-{index}",
                "--set",
                f"explorer.address={address}",
            )
            for index, address in enumerate(addresses)
        ]
        run = Network(pair, style, trainer, explorers, proxies)
        await trainer.until(lambda status: _connected(status) == len(explorers) and status.step >= 1)
        yield run
        trainer.send(signal.SIGTERM)
        assert await trainer.ended() == 128 + signal.SIGTERM
        for explorer in explorers:
            explorer.send(signal.SIGTERM)
            assert await explorer.ended() == 128 + signal.SIGTERM
        for service in pair.started:
            assert "Traceback" not in service.log.read_text()


@pytest.fixture(autouse=True)
async def healed(network: Network) -> AsyncIterator[None]:
    yield
    for proxy in network.proxies:
        proxy.heal()


async def test_a_cut_that_heals_at_once(network: Network) -> None:
    for proxy in network.proxies:
        proxy.cut()
    await network.goes_on()


async def test_a_cut_of_a_second(network: Network) -> None:
    network.proxies[0].cut(refuse=True)
    await asyncio.sleep(1)
    network.proxies[0].heal()
    await network.goes_on()
    await network.trains_what_both_make()


async def test_half_open_for_longer_than_keepalive(network: Network) -> None:
    network.proxies[0].swallow()
    await network.gets_stuck_on(0)
    if network.style == "fully_async":
        await network.goes_on(explorers=1)
    network.proxies[0].heal()
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.parametrize("network", [RUNS[0]], indirect=True, scope="module")
@pytest.mark.parametrize("direction", ["up", pytest.param("down", marks=pytest.mark.slow_faults)])
async def test_flipped_bits_are_neither_trained_nor_applied(network: Network, direction: Direction) -> None:
    await network.flips(direction, above=0)
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
@pytest.mark.parametrize("network", ["fully_async-shards-plain"], indirect=True, scope="module")
async def test_flipped_bits_of_weights_are_noticed_without_tls_too(network: Network) -> None:
    # Chunks have checksums. A flip in a control message, which has none, may end the run: that is what TLS is for.
    await network.flips("up", above=4096)
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
async def test_a_cut_longer_than_keepalive(network: Network) -> None:
    network.proxies[0].cut(refuse=True)
    if network.style == "fully_async":
        await network.goes_on(explorers=1)
    await asyncio.sleep(20)
    network.proxies[0].heal()
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_half_open_in_one_direction(network: Network, direction: Direction) -> None:
    network.proxies[0].swallow(direction)
    await network.gets_stuck_on(0)
    network.proxies[0].heal()
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
async def test_one_message_of_a_hundred_is_seconds_late(network: Network) -> None:
    for proxy in network.proxies:
        proxy.late(0.01, 3.0)
    await network.goes_on(steps=20)
    await network.trains_what_both_make()


@pytest.mark.slow_faults
async def test_a_long_way(network: Network) -> None:
    for proxy in network.proxies:
        proxy.delay(0.2)
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
async def test_a_throttled_link_makes_the_run_slow_and_no_more(network: Network) -> None:
    for proxy in network.proxies:
        proxy.throttle(50_000)
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_an_end_that_stops_reading_holds_up_no_one_else(network: Network, direction: Direction) -> None:
    network.proxies[0].stop_reading(direction)
    if network.style == "fully_async":
        await network.goes_on(explorers=1)
    await network.gets_stuck_on(0)
    network.proxies[0].heal()
    await network.goes_on()
    await network.trains_what_both_make()


@pytest.mark.slow_faults
async def test_connections_that_are_cut_again_and_again(network: Network) -> None:
    for number in range(20):
        network.proxies[number % 2].cut()
        await asyncio.sleep(0.3)
    await network.goes_on()
    await network.trains_what_both_make()
