"""Certificates that are replaced while both sides go on."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from common.config.root import LimitsConfig
from common.config.security import Role
from common.errors import ConfigError
from common.rpc.channel import open_channel
from common.rpc.credentials import Caller, ServerSecurity
from common.rpc.secured_channel import SecuredChannel
from common.rpc.stubs import explorer_stub
from protos.tandem.v1 import explorer_pb2
from tests.support.scripted_rpc import SECONDS, scripted_server, until
from tests.support.secured import certificate_settings, renew, secured

OPEN = explorer_pb2.StreamExperiencesRequest(open=explorer_pb2.StreamOpen())
STATUS = explorer_pb2.ExplorerServiceGetStatusRequest()


def serial(path: Path) -> int:
    """Of a certificate on disk."""
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def serial_shown_to_a_new_connection(address: str, folder: Path) -> int:
    """Of the server's certificate, as anybody's TLS sees it."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "operator.pem", folder / "operator-key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), SECONDS) as connection,
        context.wrap_socket(connection, server_hostname="service.tandem") as encrypted,
    ):
        certificate = encrypted.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


async def talk(call: Any) -> None:
    """One message to and fro."""
    await call.write(OPEN)
    assert (await call.read()).WhichOneof("message") == "hello"


async def test_a_new_connection_sees_the_new_certificate_while_an_open_stream_goes_on(tmp_path: Path) -> None:
    security = secured(certificate_settings(tmp_path))
    async with scripted_server(security, side=Role.EXPLORER) as (_, server, channel):
        stream = explorer_stub(channel).StreamExperiences(timeout=SECONDS)
        await talk(stream)
        before = serial(tmp_path / "explorer.pem")
        assert await asyncio.to_thread(serial_shown_to_a_new_connection, server.address, tmp_path) == before
        renew(tmp_path, Role.EXPLORER)
        after = await asyncio.to_thread(serial_shown_to_a_new_connection, server.address, tmp_path)
        assert after == serial(tmp_path / "explorer.pem") != before
        await talk(stream)
        stream.cancel()


async def test_a_caller_takes_up_a_new_certificate_with_its_next_call(tmp_path: Path) -> None:
    security = secured(certificate_settings(tmp_path))
    async with scripted_server(security) as (_, server, _):
        caller = Caller(security, Role.TRAINER, Role.EXPLORER)
        async with open_channel(server.address, LimitsConfig(), caller) as channel:
            assert isinstance(channel, SecuredChannel)
            stub = explorer_stub(channel)
            stream = stub.StreamExperiences(timeout=SECONDS)
            await talk(stream)
            first = channel._newest
            renew(tmp_path, Role.TRAINER)
            await stub.GetStatus(STATUS, timeout=SECONDS)
            assert channel._newest is not first
            await talk(stream)
            stream.cancel()
            await until(lambda: not channel._older)


async def test_files_that_do_not_fit_are_not_used_until_they_do(tmp_path: Path) -> None:
    security = secured(certificate_settings(tmp_path))
    async with scripted_server(security) as (_, server, _):
        before = serial(tmp_path / "explorer.pem")
        key = (tmp_path / "explorer-key.pem").read_bytes()
        renew(tmp_path, Role.EXPLORER)
        new_key = (tmp_path / "explorer-key.pem").read_bytes()
        # Whoever replaces two files replaces one of them first.
        (tmp_path / "explorer-key.pem").write_bytes(key)
        with capture_logs() as logs:
            for _ in range(2):
                assert await asyncio.to_thread(serial_shown_to_a_new_connection, server.address, tmp_path) == before
        (entry,) = [entry for entry in logs if entry["event"] == "changed_files_not_used"]
        assert "is not the key of the certificate" in entry["error"]
        (tmp_path / "explorer-key.pem").write_bytes(new_key)
        after = await asyncio.to_thread(serial_shown_to_a_new_connection, server.address, tmp_path)
        assert after == serial(tmp_path / "explorer.pem")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("ca.pem", b"", "no certificates"),
        ("explorer.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificates"),
        ("explorer-key.pem", b"nothing", "no private key"),
        ("explorer-key.pem", b"x" * (1 << 20) + b"x", "longer than"),
        ("explorer-key.pem", None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_used_end_the_start(tmp_path: Path, name: str, content: bytes | None, word: str) -> None:
    security = secured(certificate_settings(tmp_path))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=word) as caught:
        ServerSecurity(security, Role.EXPLORER)
    assert name in caught.value.message
