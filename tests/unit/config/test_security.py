"""Which doors may be open."""

from pathlib import Path
from typing import Any

import pytest

from common.config.load import load_config, load_security
from common.config.security import SecurityConfig, is_loopback, open_door
from common.errors import ConfigError

MODEL = "model={path: nothing}"
TOKEN = {"trainer": {"token_env": "TRAINER_TOKEN"}}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:50051", True),
        ("127.8.9.10:0", True),
        ("localhost:1", True),
        ("[::1]:50051", True),
        ("0.0.0.0:50051", False),
        ("[::]:50051", False),
        ("10.0.0.7:50051", False),
        ("trainer.example:50051", False),
        ("localhost.example:50051", False),
    ],
)
def test_loopback_is_told_from_what_others_reach(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize("side", ["trainer", "explorer"])
def test_listening_beyond_loopback_without_asking_who_calls_is_refused_and_says_what_to_do(side: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [MODEL, f"{side}.address='0.0.0.0:1'"], environ={})
    for word in (f"{side}.address", "0.0.0.0:1", "security.ca", "token_file", "tandem certs", "insecure: true"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    "security",
    [
        {"insecure": True},
        {"ca": "ca.pem"},
        TOKEN,
        {"ca": "ca.pem", "mutual": False, **TOKEN},
    ],
)
def test_listening_beyond_loopback_is_allowed_once_somebody_asks_or_says_that_nobody_need(
    security: dict[str, Any],
) -> None:
    assert open_door("trainer.address", "0.0.0.0:1", SecurityConfig.model_validate(security)) is None


def test_tls_that_asks_nobody_who_he_is_closes_no_door() -> None:
    security = SecurityConfig.model_validate({"ca": "ca.pem", "mutual": False})
    assert open_door("trainer.address", "0.0.0.0:1", security) is not None


def test_the_default_addresses_are_of_loopback() -> None:
    config = load_config(None, [MODEL], environ={})
    assert is_loopback(config.trainer.address)
    assert is_loopback(config.explorer.address)


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ("{trainer: {cert: a.pem}, ca: ca.pem}", "belong together"),
        ("{trainer: {cert: a.pem, key: b.pem}}", "set `ca`"),
        ("{trainer: {token_file: a, token_env: B}}", "not both"),
        ("{trainer: {token_env: 'a-b'}}", "token_env"),
        ("{trainer: {token_env: TANDEM__X}}", "TANDEM__"),
        ("{trainer: {token: secret}}", "unknown key"),
        ("{explorer: {certificate: a.pem}}", "unknown key"),
    ],
)
def test_what_does_not_fit_together_is_refused(section: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_security(None, [f"security={section}"], environ={})


def test_who_only_calls_needs_no_more_than_the_one_section(tmp_path: Path) -> None:
    file = tmp_path / "security.yaml"
    file.write_text("security: {ca: ca.pem, mutual: false}\nmodel: {nonsense: true}\n")
    assert load_security(file, environ={}).ca == Path("ca.pem")
    assert load_security(file, ["security.ca=other.pem"], environ={}).ca == Path("other.pem")
    assert load_security(None, environ={"TANDEM__SECURITY__CA": "third.pem"}).ca == Path("third.pem")


def test_a_stage_cannot_open_a_door() -> None:
    with pytest.raises(ConfigError, match="security"):
        load_config(None, [MODEL, "stages=[{name: a, security: {insecure: true}}]"], environ={})
