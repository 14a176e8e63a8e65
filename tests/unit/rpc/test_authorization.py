"""Each method of both services, called by each role, by strangers, and with what looks like a proof of a role."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from common.config.root import LimitsConfig
from common.config.security import Role, SecurityConfig
from common.errors import ConfigError, PermissionDenied, Unauthenticated
from common.rpc.authorization import ALLOWED
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller, ServerSecurity
from common.rpc.errors import from_rpc_error
from tests.support.scripted_rpc import SECONDS, scripted_server
from tests.support.secured import certificate_settings, secured, token_settings

REPOSITORY = Path(__file__).parents[3]
HEALTH = "grpc.health.v1.Health"
KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {"certificates": certificate_settings, "tokens": token_settings}
BY_KIND = pytest.mark.parametrize("kind", KINDS)
BY_SIDE = pytest.mark.parametrize("side", [Role.TRAINER, Role.EXPLORER])
REFUSALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}

# Written out once more, by what the roles are for: who trains moves weights and ends explorers, who explores announces
# itself and asks for weights, who operates looks and steers.
EXPECTED = {
    "tandem.v1.ExplorerService": {
        "GetStatus": {"trainer", "operator"},
        "StreamExperiences": {"trainer", "operator"},
        "PushWeights": {"trainer"},
        "NotifyCheckpoint": {"trainer"},
        "Evaluate": {"trainer", "operator"},
        "Drain": {"trainer", "operator"},
        "Stop": {"trainer", "operator"},
    },
    "tandem.v1.TrainerService": {
        "GetStatus": {"explorer", "operator"},
        "WatchMetrics": {"operator"},
        "RegisterExplorer": {"explorer"},
        "RequestSync": {"explorer"},
        "SaveCheckpoint": {"operator"},
        "Pause": {"operator"},
        "Resume": {"operator"},
        "Stop": {"operator"},
    },
}


async def listed(channel: grpc.aio.Channel) -> list[MethodDescriptor]:
    """Every method that reflection lists, health aside."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(timeout=SECONDS)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = [service.name for service in (await call.read()).list_services_response.service]
    await call.done_writing()
    assert HEALTH in names
    pool = descriptor_pool.Default()
    services = [pool.FindServiceByName(name) for name in names if name != HEALTH]
    return [method for service in services for method in service.methods]


async def code_of(channel: grpc.aio.Channel, method: MethodDescriptor, metadata: Any = None) -> grpc.StatusCode:
    """What one call with an empty request ends with. Streams are read to their first message."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, kind)(f"/{method.containing_service.full_name}/{method.name}")
    begun = call(iter([b""]) if method.client_streaming else b"", timeout=SECONDS, metadata=metadata)
    try:
        if method.server_streaming:
            await begun.read()
            begun.cancel()
        else:
            await begun
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def as_each_role(
    address: str, security: SecurityConfig, side: Role
) -> AsyncIterator[dict[Role, grpc.aio.Channel]]:
    """A channel as each role."""
    async with AsyncExitStack() as stack:
        yield {
            role: await stack.enter_async_context(open_channel(address, LimitsConfig(), Caller(security, role, side)))
            for role in Role
        }


@BY_SIDE
@BY_KIND
async def test_each_listed_method_is_for_its_roles_and_for_nobody_else(tmp_path: Path, kind: str, side: Role) -> None:
    security = secured(KINDS[kind](tmp_path))
    seen = {}
    async with (
        scripted_server(security, side=side) as (_, server, _),
        as_each_role(server.address, security, side) as channels,
    ):
        for method in await listed(channels[Role.OPERATOR]):
            codes = {role: await code_of(channel, method) for role, channel in channels.items()}
            assert grpc.StatusCode.UNAUTHENTICATED not in codes.values()
            admitted = {role.value for role, code in codes.items() if code is not grpc.StatusCode.PERMISSION_DENIED}
            service = method.containing_service.full_name
            seen[f"/{service}/{method.name}"] = admitted
            if service in EXPECTED:
                assert admitted == EXPECTED[service][method.name], method.full_name
            else:
                assert admitted == {"trainer", "explorer", "operator"}
        assert server.open_calls == 0
    # The table leaves out none that is listed, and lists none that is not there.
    other = "TrainerService" if side is Role.EXPLORER else "ExplorerService"
    assert set(seen) == {method for method in ALLOWED if other not in method}
    assert len(seen) == len(EXPECTED[f"tandem.v1.{side.title()}Service"]) + 1 + 7


@BY_SIDE
async def test_no_token_a_wrong_one_or_several_open_no_method(tmp_path: Path, side: Role) -> None:
    security = secured(token_settings(tmp_path))
    right = (tmp_path / "operator.token").read_text().strip()
    attempts: list[Any] = [
        None,
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", f"Bearer {'0' * 64}")],
        [("authorization", f"Basic {right}")],
        [("authorization", right)],
        [("authorization", f"Bearer {right}x")],
        [("authorization", f"Bearer {right}"), ("authorization", f"Bearer {right}")],
        [("authorization-bin", f"Bearer {right}".encode())],
    ]
    async with (
        scripted_server(security, side=side) as (_, server, _),
        as_each_role(server.address, security, side) as channels,
        grpc.aio.insecure_channel(server.address) as stranger,
    ):
        methods = await listed(channels[Role.OPERATOR])
        with capture_logs() as logs:
            for method in methods:
                for metadata in attempts:
                    code = await code_of(stranger, method, metadata)
                    assert code is grpc.StatusCode.UNAUTHENTICATED, (method.full_name, metadata)
        assert server.open_calls == 0
    assert right not in str(logs)
    # So many refusals are not so many lines.
    assert len([entry for entry in logs if entry["event"] == "rpc_refused"]) < 10


async def test_without_a_certificate_of_the_ca_there_is_no_connection(tmp_path: Path) -> None:
    security = secured(certificate_settings(tmp_path / "ours"))
    others = certificate_settings(tmp_path / "theirs")
    others["ca"] = str(security.ca)  # it trusts us; we do not trust it
    nobody = SecurityConfig.model_validate({"ca": security.ca, "mutual": False})
    plain = SecurityConfig()
    async with scripted_server(security) as (_, server, channel):
        method = (await listed(channel))[0]
        for stranger in (secured(others), nobody, plain):
            caller = Caller(stranger, Role.TRAINER, Role.EXPLORER)
            async with open_channel(server.address, LimitsConfig(), caller) as refused:
                assert await code_of(refused, method) is grpc.StatusCode.UNAVAILABLE
                # Even health: who is no one of ours gets no further than the handshake.
                stub: Any = health_pb2_grpc.HealthStub(refused)
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)


async def test_a_server_that_is_not_of_the_role_that_is_called_is_not_talked_to(tmp_path: Path) -> None:
    security = secured(certificate_settings(tmp_path))
    async with scripted_server(security, side=Role.EXPLORER) as (_, server, channel):
        method = (await listed(channel))[0]
        impostor = Caller(security, Role.OPERATOR, Role.TRAINER)
        async with open_channel(server.address, LimitsConfig(), impostor) as refused:
            assert await code_of(refused, method) is grpc.StatusCode.UNAVAILABLE
        for names in ("role", "host"):
            either = Caller(security.model_copy(update={"server_names": names}), Role.TRAINER)
            async with open_channel(server.address, LimitsConfig(), either) as admitted:
                assert await code_of(admitted, method) not in REFUSALS | {grpc.StatusCode.UNAVAILABLE}


async def test_health_needs_no_token(tmp_path: Path) -> None:
    async with (
        scripted_server(secured(token_settings(tmp_path))) as (_, server, _),
        grpc.aio.insecure_channel(server.address) as stranger,
    ):
        stub: Any = health_pb2_grpc.HealthStub(stranger)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_where_both_are_asked_for_both_must_say_the_same_role(tmp_path: Path) -> None:
    certificates, tokens = certificate_settings(tmp_path / "certs"), token_settings(tmp_path / "tokens")
    both = secured({"ca": certificates["ca"]} | {role: certificates[role] | tokens[role] for role in map(str, Role)})
    swapped = {role: certificates[role] | tokens["operator"] for role in map(str, Role)}
    async with scripted_server(both) as (_, server, channel):
        method = next(method for method in await listed(channel) if method.name == "GetStatus")
        assert await code_of(channel, method) is grpc.StatusCode.OK
        half = Caller(secured(certificates), Role.TRAINER, Role.EXPLORER)
        other = Caller(secured({"ca": certificates["ca"], **swapped}), Role.TRAINER, Role.EXPLORER)
        for caller in (half, other):
            async with open_channel(server.address, LimitsConfig(), caller) as refused:
                assert await code_of(refused, method) is grpc.StatusCode.UNAUTHENTICATED


async def test_the_caller_learns_which_of_the_two_it_is(tmp_path: Path) -> None:
    security = secured(token_settings(tmp_path))
    async with (
        scripted_server(security) as (_, server, _),
        as_each_role(server.address, security, Role.EXPLORER) as channels,
        grpc.aio.insecure_channel(server.address) as stranger,
    ):
        for channel, kind in ((channels[Role.EXPLORER], PermissionDenied), (stranger, Unauthenticated)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/tandem.v1.ExplorerService/Stop")(b"", timeout=SECONDS)
            assert type(from_rpc_error(caught.value, "explorer")) is kind


async def test_reflection_is_served_by_a_flag(tmp_path: Path) -> None:
    security = secured({**token_settings(tmp_path), "reflection": False})
    async with scripted_server(security) as (_, _, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await listed(channel)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_service_with_another_roles_certificate_does_not_start(tmp_path: Path) -> None:
    settings = certificate_settings(tmp_path)
    settings["trainer"] = settings["explorer"]
    with pytest.raises(ConfigError, match="not the certificate of a trainer"):
        ServerSecurity(secured(settings), Role.TRAINER)
    del settings["trainer"]
    with pytest.raises(ConfigError, match=r"security\.trainer\.cert"):
        ServerSecurity(secured(settings), Role.TRAINER)


def test_the_documentation_says_the_same() -> None:
    page = (REPOSITORY / "docs" / "security.md").read_text()
    documented: dict[str, dict[str, set[str]]] = {service: {} for service in EXPECTED}
    for methods, *columns in (line.strip("|").split("|") for line in page.splitlines() if "Service `" in line):
        service, *names = re.findall(r"\w+Service|(?<=`)\w+(?=`)", methods)
        roles = {role.value for role, column in zip(Role, columns, strict=True) if column.strip() != "no"}
        documented[f"tandem.v1.{service}"] |= dict.fromkeys(names, roles)
    assert documented == EXPECTED
