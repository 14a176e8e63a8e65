"""Bearer tokens: read, told apart, replaced, and never shown."""

import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from common.config.security import Role, SecurityConfig
from common.errors import ConfigError
from common.rpc.tokens import OwnToken, TokenTable, parse_tokens

TRAINER, EXPLORER = "trainer-0123456789abcdef", "explorer-0123456789abcdef"


def security(tmp_path: Path, **content: str) -> SecurityConfig:
    settings: dict[str, Any] = {}
    for role, text in content.items():
        (tmp_path / role).write_text(text)
        settings[role] = {"token_file": tmp_path / role}
    return SecurityConfig.model_validate(settings)


def replace(path: Path, text: str) -> None:
    """As tools do that write secrets: another file in its place."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def test_a_token_stands_for_its_role_and_nothing_else_does(tmp_path: Path) -> None:
    table = TokenTable(security(tmp_path, trainer=TRAINER + "\n", explorer=EXPLORER))
    assert table.role_of(TRAINER) is Role.TRAINER
    assert table.role_of(EXPLORER) is Role.EXPLORER
    for wrong in ("", TRAINER[:-1], TRAINER + "x", TRAINER.upper(), "ü" * 20, "x" * 100_000):
        assert table.role_of(wrong) is None


def test_the_first_of_several_is_shown_and_all_are_accepted(tmp_path: Path) -> None:
    config = security(tmp_path, trainer=f"{TRAINER}-new\n{TRAINER}\n")
    assert OwnToken(config, Role.TRAINER).metadata == (("authorization", f"Bearer {TRAINER}-new"),)
    table = TokenTable(config)
    assert table.role_of(TRAINER) is table.role_of(f"{TRAINER}-new") is Role.TRAINER


def test_a_replaced_file_counts_from_then_on_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    config = security(tmp_path, trainer=TRAINER)
    table, own = TokenTable(config), OwnToken(config, Role.TRAINER)
    replace(tmp_path / "trainer", "another-0123456789abcdef")
    assert table.role_of(TRAINER) is None
    assert table.role_of("another-0123456789abcdef") is Role.TRAINER
    assert own.metadata == (("authorization", "Bearer another-0123456789abcdef"),)
    with capture_logs() as logs:
        replace(tmp_path / "trainer", "short")
        assert table.role_of("another-0123456789abcdef") is Role.TRAINER
        (tmp_path / "trainer").unlink()
        assert table.role_of("another-0123456789abcdef") is Role.TRAINER
    assert [entry["event"] for entry in logs] == ["changed_files_not_used"] * 2
    assert "short" not in str(logs)


def test_a_variable_holds_a_token_too() -> None:
    config = SecurityConfig.model_validate({"operator": {"token_env": "OP"}})
    assert TokenTable(config, {"OP": TRAINER}).role_of(TRAINER) is Role.OPERATOR
    assert OwnToken(config, Role.OPERATOR, {"OP": TRAINER}).metadata == (("authorization", f"Bearer {TRAINER}"),)
    with pytest.raises(ConfigError, match="OP is not set"):
        TokenTable(config, {})


@pytest.mark.parametrize("text", ["", "\n", "short", "with,comma-0123456789", "x" * 513, "ü" * 20, "a" * 16 + "\n\0"])
def test_what_is_no_token_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tokens(text.encode(), "the file")
    assert caught.value.message.startswith("the file: should hold tokens")
    assert not text.strip() or text.strip() not in caught.value.message


def test_one_token_of_two_roles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another role") as caught:
        TokenTable(security(tmp_path, trainer=TRAINER, explorer=TRAINER))
    assert TRAINER not in caught.value.message


def test_who_has_no_token_where_others_have_one_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"security\.operator\.token_file"):
        OwnToken(security(tmp_path, trainer=TRAINER), Role.OPERATOR)
    assert OwnToken(SecurityConfig(), Role.OPERATOR).metadata == ()


def test_a_file_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    config = security(tmp_path, trainer=TRAINER)
    os.truncate(tmp_path / "trainer", (1 << 20) + 1)
    with pytest.raises(ConfigError, match="longer than"):
        TokenTable(config)
    (tmp_path / "trainer").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenTable(config)
