"""What `tandem certs` makes."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from common.cli.certs import make_certificates
from common.config.load import load_security
from common.config.security import Role
from common.errors import ConfigError
from tests.support.secured import renew, secured


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def openssl(*words: object) -> str:
    """Standard output of OpenSSL's own program, which must succeed."""
    program = shutil.which("openssl")
    assert program is not None
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openssl_verifies_them_and_keys_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "certs"
    make_certificates(folder, ("trainer.example", "10.0.0.7"), days=30)
    for role in ("trainer", "explorer", "operator"):
        certificate = folder / f"{role}.pem"
        for purpose in ["sslclient"] if role == "operator" else ["sslclient", "sslserver"]:
            openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", folder / "ca.pem", certificate)
        shown = openssl("x509", "-in", certificate, "-noout", "-ext", "subjectAltName")
        assert f"URI:spiffe://tandem/{role}" in shown
        for host in ("DNS:trainer.example", "IP Address:10.0.0.7", "DNS:localhost", "DNS:service.tandem"):
            assert (host in shown) is (role != "operator")
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.name.endswith("-key.pem") else 0o644), path.name


def test_nothing_is_overwritten_and_what_is_missing_is_made_under_the_same_ca(tmp_path: Path) -> None:
    make_certificates(tmp_path, (), days=1)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="not overwritten"):
        make_certificates(tmp_path, (), days=1)
    assert contents(tmp_path) == before
    renew(tmp_path, Role.TRAINER)
    after = contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"trainer.pem", "trainer-key.pem"}
    (tmp_path / "ca-key.pem").unlink()
    with pytest.raises(ConfigError, match="ca-key"):
        renew(tmp_path, Role.TRAINER)
    assert (tmp_path / "ca.pem").read_bytes() == before["ca.pem"]


def test_its_security_section_is_one(tmp_path: Path) -> None:
    make_certificates(tmp_path, (), days=1)
    security = load_security(tmp_path / "security.yaml", environ={})
    assert security.asks_for_certificates
    assert security.trainer.cert == tmp_path / "trainer.pem"
    assert secured(security.model_dump(mode="json")) == security


@pytest.mark.parametrize("host", ["ümlaut.example"])
def test_a_host_that_cannot_stand_in_a_certificate_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        make_certificates(tmp_path / "certs", (host,), days=1)
    assert not (tmp_path / "certs").exists()
