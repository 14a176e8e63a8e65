"""Certificates and keys on disk: checked when they are read, and read again when they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from common.config.security import Role, SecurityConfig
from common.errors import ConfigError
from common.rpc.watched_files import WatchedFiles

ROLE_URIS = {f"spiffe://tandem/{role}": role for role in Role}
"""The subject alternative name that says a certificate's role."""
ANY_SERVICE = "service.tandem"
"""A DNS name of every server's certificate, for who does not know which service listens at an address."""
SERVER_NAMES = {role: f"{role}.tandem" for role in (Role.TRAINER, Role.EXPLORER)}
"""The DNS name of the certificates of one service's servers."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What gRPC takes, in PEM."""

    ca: bytes
    own: tuple[bytes, bytes] | None
    """Private key and certificate chain."""


def watched_tls(security: SecurityConfig, role: Role, *, own_needed: bool) -> WatchedFiles[TlsMaterial]:
    """The files of one role. Raises ConfigError when one is missing, or they do not belong together."""
    config = security.of(role)
    if security.ca is None:
        raise ConfigError("`security.ca` is not set")
    if config.cert is None or config.key is None:
        if own_needed:
            raise ConfigError(
                f"`security.ca` is set, so the {role} needs `security.{role}.cert` and `security.{role}.key` "
                "(`tandem certs DIR` makes them)"
            )
        return WatchedFiles([security.ca], lambda contents: TlsMaterial(_checked_ca(contents[0], security.ca), None))
    paths = (security.ca, config.cert, config.key)
    asked = role if security.mutual else None

    def make(contents: list[bytes]) -> TlsMaterial:
        return _material(contents, paths, asked)

    return WatchedFiles(paths, make)


def _material(contents: Sequence[bytes], paths: tuple[Path, Path, Path], role: Role | None) -> TlsMaterial:
    ca, chain, key = contents
    _, cert_path, key_path = paths
    certificate = _certificates(chain, cert_path)[0]
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{key_path}: is no private key in PEM without a passphrase") from error
    if _public(private.public_key()) != _public(certificate.public_key()):
        raise ConfigError(f"{key_path}: is not the key of the certificate {cert_path}")
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise ConfigError(f"{cert_path}: expired at {certificate.not_valid_after_utc.isoformat()}")
    if role is not None and certificate_role(_uris(certificate)) is not role:
        wanted = f"spiffe://tandem/{role}"
        raise ConfigError(f"{cert_path}: is not the certificate of a {role}: it lacks the alternative name {wanted}")
    return TlsMaterial(_checked_ca(ca, paths[0]), (key, chain))


def certificate_role(uris: Sequence[str]) -> Role | None:
    """The role that a certificate's URIs say; None unless they say exactly one."""
    roles = [ROLE_URIS[uri] for uri in uris if uri in ROLE_URIS]
    return roles[0] if len(roles) == 1 else None


def _uris(certificate: x509.Certificate) -> Sequence[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _checked_ca(content: bytes, path: Path | None) -> bytes:
    _certificates(content, path)
    return content


def _certificates(content: bytes, path: Path | None) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ConfigError(f"{path}: holds no certificates in PEM") from error


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
