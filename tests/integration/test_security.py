"""A pair whose services ask who calls: by certificate, and by token."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml
from structlog.testing import capture_logs

from common.config.security import Role
from common.errors import PermissionDenied
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller
from common.rpc.errors import from_rpc_error
from common.rpc.health_probe import main as probe
from common.rpc.stubs import explorer_stub
from protos.tandem.v1 import explorer_pb2
from tests.support.grpcurl import EXPLORER, TRAINER, Answer, grpcurl
from tests.support.pair import REPOSITORY
from tests.support.pair_config import pair_config, pair_settings
from tests.support.pair_in_process import SECONDS, InProcessPair, in_process
from tests.support.secured import certificate_settings, renew, token_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

PERMISSION_DENIED = 64 + 7
"""grpcurl's exit code."""
CONFIGURED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "certificates": certificate_settings,
    "tokens": token_settings,
}
ENDLESS = {"trainer": {"total_steps": 1_000_000}}


@dataclass(frozen=True)
class Secured:
    """A pair that runs, and what its section `security` names."""

    pair: InProcessPair
    kind: str
    folder: Path

    def words(self, role: str) -> Sequence[str]:
        """grpcurl's words for calling as a role."""
        if self.kind == "tokens":
            token = (self.folder / f"{role}.token").read_text().strip()
            return ("-plaintext", "-H", f"authorization: Bearer {token}")
        folder = self.folder
        identity = ("-cert", f"{folder}/{role}.pem", "-key", f"{folder}/{role}-key.pem")
        return ("-cacert", f"{folder}/ca.pem", *identity, "-authority", "service.tandem")

    async def curl(self, role: str, side: str, *words: str, **options: Any) -> Answer:
        """One call of a side as a role."""
        config = self.pair.config
        address = config.trainer.address if side == "trainer" else config.explorer.address
        return await grpcurl(address, *words, secured=self.words(role), **options)


@pytest_asyncio.fixture(loop_scope="session", scope="module", params=sorted(CONFIGURED))
async def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    """A pair that trains for as long as the tests take."""
    folder = tmp_path_factory.mktemp(request.param)
    config = pair_config(folder, ENDLESS, {"security": CONFIGURED[request.param](folder / "secrets")})
    async with in_process(config) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.until(pair.trainer_status, lambda status: status.step >= 1)
        yield Secured(pair, request.param, folder / "secrets")


@pytest.mark.parametrize("kind", sorted(CONFIGURED))
async def test_a_pair_runs_to_its_end_with_an_explorer_that_registers_and_asks_for_weights(
    tmp_path: Path, kind: str
) -> None:
    settings = {
        "explorers": [],
        "sync": {"style": "explorer_driven"},
        "security": CONFIGURED[kind](tmp_path / "secrets"),
        "trainer": {"total_steps": 3},
    }
    async with in_process(pair_config(tmp_path, settings)) as pair:
        pair.start_explorer()
        pair.start_trainer()
        await pair.both_end()


async def test_grpcurl_lists_describes_and_calls_as_an_operator(secured: Secured) -> None:
    listed = await secured.curl("operator", "trainer", "list")
    assert TRAINER in listed.stdout.split()
    described = await secured.curl("operator", "explorer", "describe", EXPLORER)
    assert "rpc PushWeights" in described.stdout
    status = (await secured.curl("operator", "trainer", f"{TRAINER}/GetStatus")).only
    assert status["run_name"] == "pair"
    assert (await secured.curl("operator", "trainer", f"{TRAINER}/Pause")).code == 0
    assert (await secured.curl("operator", "trainer", f"{TRAINER}/Resume")).code == 0


@pytest.mark.parametrize(
    "method", ["PushWeights", "NotifyCheckpoint", "Drain", "Stop", "Evaluate", "StreamExperiences"]
)
async def test_an_explorer_cannot_do_to_another_what_a_trainer_does(secured: Secured, method: str) -> None:
    answer = await secured.curl("explorer", "explorer", f"{EXPLORER}/{method}", data={})
    assert (answer.code, answer.reason) == (PERMISSION_DENIED, "PERMISSION_DENIED")


@pytest.mark.parametrize("method", ["SaveCheckpoint", "Pause", "Resume", "Stop"])
async def test_an_explorer_cannot_steer_the_trainer(secured: Secured, method: str) -> None:
    answer = await secured.curl("explorer", "trainer", f"{TRAINER}/{method}", data={})
    assert (answer.code, answer.reason) == (PERMISSION_DENIED, "PERMISSION_DENIED")


async def test_a_stranger_gets_nowhere(secured: Secured) -> None:
    address = secured.pair.config.trainer.address
    plain = ("-plaintext", "-connect-timeout", "1")
    strangers = {"certificates": [plain], "tokens": [plain, (*plain, "-H", f"authorization: Bearer {'0' * 64}")]}
    for words in strangers[secured.kind]:
        # grpcurl asks reflection first, which is for nobody either.
        answer = await grpcurl(address, f"{TRAINER}/Stop", data={}, secured=words)
        assert answer.code != 0
        assert ("Unauthenticated" in answer.stderr) is (secured.kind == "tokens")
    assert (await secured.pair.trainer_status()).failure == ""


async def test_an_operator_may_look_at_experiences_and_not_take_the_trainers_place(secured: Secured) -> None:
    config = secured.pair.config
    caller = Caller(config.security, Role.OPERATOR, Role.EXPLORER)
    with capture_logs() as logs:
        async with open_channel(config.explorer.address, config.limits, caller) as channel:
            for peek in (True, False):
                call = explorer_stub(channel).StreamExperiences(timeout=SECONDS)
                opening = explorer_pb2.StreamOpen(run_epoch=9, run_name="pair", peek=peek)
                await call.write(explorer_pb2.StreamExperiencesRequest(open=opening))
                if peek:
                    assert (await call.read()).WhichOneof("message") == "hello"
                    call.cancel()
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert isinstance(from_rpc_error(caught.value, "explorer"), PermissionDenied)
    assert [entry for entry in logs if entry["event"] == "trainer_connected"] == []


async def test_the_command_line_and_the_health_probe_call_as_the_configuration_says(secured: Secured) -> None:
    config = secured.pair.config
    file = secured.folder / "calls.yaml"
    file.write_text(yaml.safe_dump({"security": config.security.model_dump(mode="json")}))
    for address, word in ((config.trainer.address, '"service": "trainer"'), (config.explorer.address, "explorer-0")):
        code, out, err = await tandem("status", address, "--json", "--config", str(file))
        assert (code, word in out) == (0, True), err
        for role in ("operator", "trainer"):
            assert await asyncio.to_thread(probe, [address, "--config", str(file), "--role", role]) == 0
    code, _, err = await tandem("status", config.trainer.address)
    assert code == 1
    assert "does not answer" in err


async def test_replaced_secrets_are_taken_up_by_both_sides_while_the_stream_goes_on(secured: Secured) -> None:
    pair = secured.pair
    with capture_logs() as logs:
        for role in Role:
            if secured.kind == "certificates":
                renew(secured.folder, role)
            else:
                old = (secured.folder / f"{role}.token").read_text()
                (secured.folder / f"{role}.token").write_text(f"{'1' * 32}-{role}\n{old}")
        step = (await pair.trainer_status()).step
        await pair.until(pair.trainer_status, lambda status: status.step >= step + 3)
        await pair.explorer_status()
    events = [entry["event"] for entry in logs]
    assert events.count("changed_files_used") >= 2
    assert not {"explorer_left", "trainer_disconnected", "changed_files_not_used"} & set(events)


async def test_listening_beyond_loopback_without_security_ends_with_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(yaml.safe_dump(pair_settings(tmp_path, {"trainer": {"address": "0.0.0.0:0"}})))
    code, _, err = await python("-m", "trainer_service", "--config", str(file))
    assert code == 2
    assert "security.insecure: true" in err


async def tandem(*words: str) -> tuple[int, str, str]:
    """The command line."""
    return await python("-m", "common.cli.app", *words)


async def python(*words: str) -> tuple[int, str, str]:
    """A child process: exit code, standard output and error."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_WAIT_POLICY": "passive"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=REPOSITORY,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
