"""`tandem certs`: a certificate authority, and a certificate for each role."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.config.security import Role
from common.errors import ConfigError, StorageFailed
from common.rpc.tls_files import ANY_SERVICE, SERVER_NAMES

HERE = ("localhost", "127.0.0.1", "::1")
CA_NAME = "Tandem CA"
CLOCK_SKEW = timedelta(minutes=5)
"""A machine whose clock is late takes a fresh certificate all the same."""
PRIVATE, PUBLIC = 0o600, 0o644


class _Authority:
    """A CA's key and certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key = key
        self.certificate = certificate


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> str:
    """Makes what is not there yet, and returns how to use it, for people.

    Raises ConfigError where nothing would be made, and StorageFailed.
    """
    names = [_name(host) for host in (*HERE, *hosts)]
    until = datetime.now(UTC) + timedelta(days=days)
    missing = [role for role in Role if not (folder / f"{role}.pem").exists() and not _key(folder, role).exists()]
    if not missing:
        raise ConfigError(f"{folder} holds certificates of all roles already; they are not overwritten")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        authority = _authority(folder, until)
        for role in missing:
            key = ec.generate_private_key(ec.SECP256R1())
            _write(_key(folder, role), _private_pem(key), PRIVATE)
            certificate = _certificate(role, key.public_key(), authority, names, until)
            _write(folder / f"{role}.pem", certificate.public_bytes(Encoding.PEM), PUBLIC)
        section = folder / "security.yaml"
        if not section.exists():
            _write(section, _section(folder.absolute()).encode(), PUBLIC)
    except OSError as error:
        raise StorageFailed(f"{error.filename or folder}: {error.strerror}", path=folder) from error
    return _how_to(folder, missing)


def _authority(folder: Path, until: datetime) -> _Authority:
    """The folder's own, or a new one."""
    certificate_path, key_path = folder / "ca.pem", folder / "ca-key.pem"
    if certificate_path.exists() and key_path.exists():
        try:
            certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
            key = load_pem_private_key(key_path.read_bytes(), None)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{certificate_path} and {key_path}: no certificate and key in PEM: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ConfigError(f"{key_path} is not the key of {certificate_path}, made by `tandem certs`")
        return _Authority(key, certificate)
    if certificate_path.exists() or key_path.exists():
        raise ConfigError(f"{folder} holds one of ca.pem and ca-key.pem: without both nothing can be added to it")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME)])
    public = key.public_key()
    certificate = (
        _builder(name, name, public, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _private_pem(key), PRIVATE)
    _write(certificate_path, certificate.public_bytes(Encoding.PEM), PUBLIC)
    return _Authority(key, certificate)


def _certificate(
    role: Role,
    public: ec.EllipticCurvePublicKey,
    authority: _Authority,
    hosts: Sequence[x509.GeneralName],
    until: datetime,
) -> x509.Certificate:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"spiffe://tandem/{role}")]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role in SERVER_NAMES:
        names += [x509.DNSName(SERVER_NAMES[role]), x509.DNSName(ANY_SERVICE), *hosts]
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tandem {role}")])
    return (
        _builder(subject, authority.certificate.subject, public, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCK_SKEW)
        .not_valid_after(until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"--host {host!r}: should be a name or an IP address, without a port") from error


def _key(folder: Path, role: Role) -> Path:
    return folder / f"{role}-key.pem"


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file, from its first moment readable to whom it may be."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _section(folder: Path) -> str:
    roles = {role.value: {"cert": str(folder / f"{role}.pem"), "key": str(_key(folder, role))} for role in Role}
    return yaml.safe_dump({"security": {"ca": str(folder / "ca.pem"), **roles}}, sort_keys=False)


def _how_to(folder: Path, made: Sequence[Role]) -> str:
    return f"""made in {folder}, for: {", ".join(made)}

Put the section of {folder}/security.yaml into the run's configuration. A machine needs ca.pem and the two files of its own
role; keep ca-key.pem apart from all of them. Then

  tandem status HOST:PORT --config {folder}/security.yaml
  grpcurl -cacert {folder}/ca.pem -cert {folder}/operator.pem -key {folder}/operator-key.pem \\
    -authority {ANY_SERVICE} HOST:PORT list
"""
