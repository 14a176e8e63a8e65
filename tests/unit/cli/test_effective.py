"""The configuration that `tandem up` gives to both services."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from common.cli.effective import effective, explorer_target, trainer_target, write_effective
from common.config.load import load_config
from common.config.root import TandemConfig
from common.config.stages import stage_configs
from common.errors import ConfigError, StorageFailed


def config(*overrides: str) -> TandemConfig:
    return load_config(None, ["model.path=somewhere", *overrides], environ={})


def test_port_0_becomes_two_different_free_ports_below_the_ephemeral_range() -> None:
    ready = effective(config("trainer.address=127.0.0.1:0", "explorer.address=127.0.0.1:0"))
    ports = [int(address.rpartition(":")[2]) for address in (ready.trainer.address, ready.explorer.address)]
    assert len(set(ports)) == 2
    for port in ports:
        assert 20_000 <= port < 32_768
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_port_that_is_given_is_kept_even_when_it_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert effective(config(f"trainer.address={address}")).trainer.address == address


def test_the_trainer_dials_the_explorer_where_nobody_is_listed() -> None:
    ready = effective(config("explorer.address=127.0.0.1:0"))
    assert [listed.address for listed in ready.explorers] == [ready.explorer.address]
    assert ready.explorer.trainer is None


def test_an_explorer_that_registers_is_not_listed() -> None:
    ready = effective(config("explorer.trainer=127.0.0.1:50051"))
    assert ready.explorers == ()


@pytest.mark.parametrize("where", ["sync.style=explorer_driven", "stages=[{name: a, sync: {style: explorer_driven}}]"])
def test_an_explorer_that_asks_knows_whom(where: str) -> None:
    ready = effective(config(where, "trainer.address=127.0.0.1:0"))
    assert ready.explorer.trainer == ready.trainer.address
    assert [listed.address for listed in ready.explorers] == [ready.explorer.address]


def test_an_address_to_listen_on_everywhere_is_dialled_on_loopback() -> None:
    ready = effective(
        config("explorer.address='0.0.0.0:50052'", "trainer.address='[::]:50051'", "security.insecure=true")
    )
    assert [listed.address for listed in ready.explorers] == ["127.0.0.1:50052"]
    assert explorer_target(ready) == "127.0.0.1:50052"
    assert trainer_target(ready) == "[::1]:50051"


def test_an_explorer_that_the_trainer_would_never_dial_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not list 127\.0\.0\.1:50052"):
        effective(config("explorers=[{address: '10.0.0.7:50052'}]"))


def test_what_is_written_is_what_the_services_read(tmp_path: Path) -> None:
    ready = effective(config(f"run.root={tmp_path}", "trainer.address=127.0.0.1:0", "algorithm.optimizer.lr=1e-5"))
    path = write_effective(ready)
    assert path == tmp_path / "run" / "config.yaml"
    assert load_config(path, environ={}) == ready
    assert write_effective(ready) == path
    assert [entry.name for entry in path.parent.iterdir()] == ["config.yaml"]


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(StorageFailed, match=r"config\.yaml"):
        write_effective(effective(config(f"run.root={tmp_path}")))


def test_stages_keep_their_meaning_when_the_effective_configuration_is_read_again(tmp_path: Path) -> None:
    raw: dict[str, Any] = {"stages": "[{name: a, trainer: {total_steps: 3}}, {name: b}]", "run.root": tmp_path}
    ready = effective(config(*(f"{key}={value}" for key, value in raw.items())))
    again = load_config(write_effective(ready), environ={})
    assert [stage.model_dump() for stage in stage_configs(again)] == [s.model_dump() for s in stage_configs(ready)]
