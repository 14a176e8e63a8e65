"""What a person does to a running pair with the real grpcurl, and what it answers."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import xxhash

from common.config.root import TandemConfig
from explorer_service import app as explorer_app
from protos.tandem.v1 import explorer_pb2, trainer_pb2
from tests.support.grpcurl import EXPLORER, TRAINER, grpcurl
from tests.support.pair_config import pair_config
from tests.support.pair_in_process import InProcessPair, in_process, kill

pytestmark = pytest.mark.asyncio(loop_scope="session")

INVALID_ARGUMENT, FAILED_PRECONDITION, UNAVAILABLE = 64 + 3, 64 + 9, 64 + 14
"""grpcurl's exit codes."""
SETTINGS = {
    "run": {"name": "looked-into"},
    "trainer": {"total_steps": 1_000_000},
    "explorer": {"send_text": True, "trainer": None},
    "sync": {"offset": 1, "max_staleness": 3},  # so that a second explorer may join: what is too much is dropped
}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessPair]:
    """A pair that has trained some steps and is paused, with batches in the spool."""
    async with in_process(pair_config(tmp_path_factory.mktemp("grpcurl"), SETTINGS)) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 3)
        await paused(pair)
        yield pair


async def paused(pair: InProcessPair) -> None:
    """Pauses by hand; returns when both sides rest, the explorer one step ahead."""
    await grpcurl(pair.config.trainer.address, f"{TRAINER}/Pause")
    await pair.until(pair.trainer_status, lambda status: status.state == trainer_pb2.TRAINER_STATE_PAUSED)
    await pair.until(
        pair.explorer_status,
        lambda status: (
            status.state == explorer_pb2.EXPLORER_STATE_WAITING_FOR_SYNC
            and status.batches_spooled > 0
            and status.groups_running == 0
        ),
    )


async def status_of(config: TandemConfig) -> dict[str, Any]:
    """The explorer's status, by hand."""
    return (await grpcurl(config.explorer.address, f"{EXPLORER}/GetStatus")).only


async def test_both_services_list_and_describe_themselves(pair: InProcessPair) -> None:
    for address, service, method, message in (
        (pair.config.trainer.address, TRAINER, "rpc RegisterExplorer (", "RegisterExplorerRequest"),
        (pair.config.explorer.address, EXPLORER, "rpc PushWeights ( stream", "StreamOpen"),
    ):
        listed = await grpcurl(address, "list")
        assert set(listed.stdout.split()) == {
            "grpc.channelz.v1.Channelz",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            service,
        }
        assert method in (await grpcurl(address, "describe", service)).stdout
        assert "string run_name" in (await grpcurl(address, "describe", f"tandem.v1.{message}")).stdout


async def test_both_say_what_they_do_and_that_they_serve(pair: InProcessPair) -> None:
    trainer = (await grpcurl(pair.config.trainer.address, f"{TRAINER}/GetStatus")).only
    assert trainer["state"] == "TRAINER_STATE_PAUSED"
    assert "Resume" in [wait["waiting_for"] for wait in trainer["waits"]]
    explorer = await status_of(pair.config)
    assert explorer["policy_version"] == trainer["published"]
    assert "newer than step" in explorer["reason"]
    for address, service in ((pair.config.trainer.address, TRAINER), (pair.config.explorer.address, EXPLORER)):
        for name in ("", service):
            answer = await grpcurl(address, "grpc.health.v1.Health/Check", data={"service": name})
            assert answer.only == {"status": "SERVING"}


async def test_channelz_shows_servers_and_the_channel_between_them(pair: InProcessPair) -> None:
    servers = await grpcurl(pair.config.trainer.address, "grpc.channelz.v1.Channelz/GetServers")
    sockets = [socket["name"] for server in servers.only["server"] for socket in server["listen_socket"]]
    assert any(pair.config.trainer.address in name for name in sockets)
    channels = await grpcurl(pair.config.trainer.address, "grpc.channelz.v1.Channelz/GetTopChannels")
    targets = [channel["data"]["target"] for channel in channels.only["channel"]]
    assert any(target.endswith(pair.config.explorer.address) for target in targets)


async def test_a_batch_is_pulled_by_hand_and_nothing_changes(pair: InProcessPair) -> None:
    before = await status_of(pair.config)
    for wanted, at_least in ((1, 1), (10**18, int(before["batches_spooled"]))):
        hello, *batches = (
            await grpcurl(
                pair.config.explorer.address,
                f"{EXPLORER}/StreamExperiences",
                lines=[
                    {"open": {"runEpoch": 1, "runName": "looked-into", "peek": True}},
                    {"credit": {"groupLimit": wanted}},
                ],
            )
        ).messages
        assert hello["hello"]["explorer_id"] == "explorer-0"
        assert hello["hello"]["last_sequence"] == before["last_sequence"]
        assert len(batches) == at_least
        batch = batches[0]["batch"]
        assert int(batch["sequence"]) == int(before["frontier"]) + 1
        text = batch["groups"][0]["texts"][0]
        assert text["prompt"] == batch["groups"][0]["task_id"]
        assert set(text["response"]) <= set("0123456789srcd=")
        columns = base64.b64decode(batch["columns"])
        assert xxhash.xxh3_64_intdigest(columns) == int(batch["columns_xxh3"])
    assert await status_of(pair.config) == before
    trainer = await pair.trainer_status()
    assert [link.connected for link in trainer.explorers] == [True]


async def test_a_peek_needs_no_name_and_without_credit_it_only_greets(pair: InProcessPair) -> None:
    answer = await grpcurl(pair.config.explorer.address, f"{EXPLORER}/StreamExperiences", data={"open": {"peek": True}})
    assert list(answer.only) == ["hello"]
    other = await grpcurl(
        pair.config.explorer.address,
        f"{EXPLORER}/StreamExperiences",
        data={"open": {"peek": True, "runName": "other"}},
    )
    assert (other.code, other.reason) == (FAILED_PRECONDITION, "RUN_MISMATCH")


async def test_a_checkpoint_is_pushed_by_hand_to_an_explorer_without_a_trainer(pair: InProcessPair) -> None:
    saved = (await grpcurl(pair.config.trainer.address, f"{TRAINER}/SaveCheckpoint")).only
    published = (await grpcurl(pair.config.trainer.address, f"{TRAINER}/GetStatus")).only["published"]
    version = {"run_epoch": published["run_epoch"], "step": published["step"]}
    assert saved["step"] == published["step"]
    second = pair_config(
        pair.config.run.root, SETTINGS, {"explorer": {"id": "explorer-1"}, "run": {"name": "looked-into"}}
    )
    async with in_process(second) as alone:
        explorer = alone.start_explorer()
        await alone.until(
            alone.explorer_status, lambda status: status.state == explorer_pb2.EXPLORER_STATE_WAITING_FOR_WEIGHTS
        )

        async def notify(path: str, **changes: Any) -> Any:
            return await grpcurl(
                second.explorer.address,
                f"{EXPLORER}/NotifyCheckpoint",
                data={"version": {**version, **changes}, "path": path},
            )

        refused = {
            (saved["path"], "manifest_hash", "00" * 16): (FAILED_PRECONDITION, "MANIFEST_MISMATCH"),
            (saved["path"], "step", int(saved["step"]) + 1): (FAILED_PRECONDITION, "MANIFEST_MISMATCH"),
            (saved["path"], "run_epoch", 0): (INVALID_ARGUMENT, "PROTOCOL_VIOLATION"),
            (saved["path"], "step", (1 << 64) - 1): (INVALID_ARGUMENT, "MALFORMED_DATA"),
            (saved["path"], "manifest_hash", "x" * 65): (INVALID_ARGUMENT, "MALFORMED_DATA"),
            (f"../checkpoints/{saved['path']}", "", ""): (INVALID_ARGUMENT, "UNSAFE_PATH"),
            (str(second.checkpoint_root / saved["path"]), "", ""): (INVALID_ARGUMENT, "UNSAFE_PATH"),
            ("", "", ""): (INVALID_ARGUMENT, "UNSAFE_PATH"),
            ("\u001b[31m\u0007", "run_epoch", 1 << 62): (FAILED_PRECONDITION, "CHECKPOINT_INVALID"),
            ("latest", "", ""): (FAILED_PRECONDITION, "CHECKPOINT_INVALID"),
            (f"{saved['path']}/model.safetensors", "", ""): (FAILED_PRECONDITION, "CHECKPOINT_INVALID"),
        }
        for (path, field, value), expected in refused.items():
            answer = await notify(path, **({field: value} if field else {}))
            assert (answer.code, answer.reason) == expected, (path, field)
            assert "\u001b" not in answer.stderr
        # None of them left anything behind, the far run epoch least of all.
        assert "policy_version" not in await status_of(second) or not (await status_of(second))["policy_version"]
        for _ in range(2):
            applied = (await notify(saved["path"])).only["applied"]
            assert applied["version"] == published
        assert (await status_of(second))["policy_version"] == published
        await kill(explorer)


async def test_pause_save_and_resume_by_hand(pair: InProcessPair) -> None:
    address = pair.config.trainer.address
    first = (await grpcurl(address, f"{TRAINER}/SaveCheckpoint")).only
    assert (await grpcurl(address, f"{TRAINER}/SaveCheckpoint")).only == first
    assert (pair.config.checkpoint_root / first["path"] / "manifest.json").exists()
    assert (await grpcurl(address, f"{TRAINER}/Pause")).only == {"step": first["step"]}
    assert (await grpcurl(address, f"{TRAINER}/Resume")).only == {"step": first["step"]}
    await pair.until(pair.trainer_status, lambda status: status.step >= int(first["step"]) + 2)
    later = (await grpcurl(address, f"{TRAINER}/SaveCheckpoint")).only
    assert int(later["step"]) > int(first["step"])
    await paused(pair)


async def test_what_registers_by_hand_is_checked(pair: InProcessPair) -> None:
    good = {"explorer_id": "explorer-7", "address": "127.0.0.1:1", "run_name": "looked-into"}
    refused = {
        ("address", "unix:/x"): (INVALID_ARGUMENT, "PROTOCOL_VIOLATION"),
        ("address", "127.0.0.1:1\n"): (INVALID_ARGUMENT, "PROTOCOL_VIOLATION"),
        ("address", ""): (INVALID_ARGUMENT, "PROTOCOL_VIOLATION"),
        ("explorer_id", "x\u0007"): (INVALID_ARGUMENT, "PROTOCOL_VIOLATION"),
        ("explorer_id", "x" * 100_000): (INVALID_ARGUMENT, "PROTOCOL_VIOLATION"),
        ("run_name", "other\u001b[31m" * 1000): (FAILED_PRECONDITION, "RUN_MISMATCH"),
    }
    for (field, value), expected in refused.items():
        answer = await grpcurl(pair.config.trainer.address, f"{TRAINER}/RegisterExplorer", data={**good, field: value})
        assert (answer.code, answer.reason) == expected, field
        assert "\u001b" not in answer.stderr
        assert len(answer.stderr) < 4096
    assert len((await pair.trainer_status()).explorers) == 1


async def test_an_explorer_registered_by_hand_joins_the_run(pair: InProcessPair) -> None:
    third = pair_config(pair.config.run.root, SETTINGS, {"explorer": {"id": "explorer-2"}})
    async with in_process(third) as joining:
        joining.start_explorer()
        await joining.until(
            joining.explorer_status, lambda status: status.state == explorer_pb2.EXPLORER_STATE_WAITING_FOR_WEIGHTS
        )
        request = {"explorer_id": "explorer-2", "address": third.explorer.address, "run_name": "looked-into"}
        for _ in range(2):
            answer = await grpcurl(pair.config.trainer.address, f"{TRAINER}/RegisterExplorer", data=request)
            assert answer.only["run_epoch"] == "1"
        published = (await pair.trainer_status()).published
        await joining.until(joining.explorer_status, lambda status: status.policy_version == published)
        links = {link.explorer_id: link.connected for link in (await pair.trainer_status()).explorers}
        assert links == {"explorer-0": True, "explorer-2": True}


async def test_a_service_that_starts_says_so(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, make_engine = threading.Event(), explorer_app.make_engine

    def slow_engine(config: TandemConfig) -> Any:
        assert may_load.wait(60)
        return make_engine(config)

    monkeypatch.setattr(explorer_app, "make_engine", slow_engine)
    config = pair_config(tmp_path_factory.mktemp("starting"), SETTINGS)
    async with in_process(config) as pair:
        pair.start_explorer()
        try:
            await pair.until(pair.explorer_status, lambda _: True)
            assert (await status_of(config))["state"] == "EXPLORER_STATE_STARTING"
            health = await grpcurl(config.explorer.address, "grpc.health.v1.Health/Check")
            assert health.only == {"status": "NOT_SERVING"}
            drained = await grpcurl(config.explorer.address, f"{EXPLORER}/Drain")
            assert (drained.code, drained.reason) == (UNAVAILABLE, "SHUTTING_DOWN")
        finally:
            may_load.set()
        await pair.until(
            pair.explorer_status, lambda status: status.state == explorer_pb2.EXPLORER_STATE_WAITING_FOR_WEIGHTS
        )
        health = await grpcurl(config.explorer.address, "grpc.health.v1.Health/Check")
        assert health.only == {"status": "SERVING"}


async def test_stop_by_hand_ends_both_services(pair: InProcessPair) -> None:
    answer = await grpcurl(pair.config.trainer.address, f"{TRAINER}/Stop", data={"reason": "enough\u0007"})
    assert answer.only == {}
    async with asyncio.timeout(60):
        await asyncio.wait(pair.tasks.values())
    assert pair.tasks["trainer"].result().run_is_over
    assert pair.tasks["explorer"].exception() is None
