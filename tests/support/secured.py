"""Configurations of a service that asks who calls, and callers of each role."""

import secrets
from pathlib import Path
from typing import Any

from common.cli.certs import make_certificates
from common.config.security import Role, SecurityConfig
from common.config.yaml_source import parse


def certificate_settings(folder: Path) -> dict[str, Any]:
    """Section `security`, with fresh certificates in the folder."""
    make_certificates(folder, (), days=1)
    section = parse((folder / "security.yaml").read_text(), "security.yaml")
    assert isinstance(section, dict)
    return dict(section["security"])


def token_settings(folder: Path) -> dict[str, Any]:
    """Section `security`, with fresh tokens in the folder."""
    folder.mkdir(exist_ok=True)
    for role in Role:
        (folder / f"{role}.token").write_text(secrets.token_hex(32) + "\n")
    return {role.value: {"token_file": str(folder / f"{role}.token")} for role in Role}


def secured(settings: dict[str, Any]) -> SecurityConfig:
    """The section, validated."""
    return SecurityConfig.model_validate(settings)


def renew(folder: Path, role: Role) -> None:
    """Another certificate and key for the role, of the folder's CA."""
    for name in (f"{role}.pem", f"{role}-key.pem"):
        (folder / name).unlink()
    make_certificates(folder, (), days=1)
