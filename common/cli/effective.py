"""The configuration that both services get: ports chosen, addresses filled in, written into the run's folder."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

from common.config.load import load_config, to_yaml
from common.config.root import ExplorerAddress, TandemConfig
from common.config.stages import stage_configs
from common.errors import ConfigError, StorageFailed
from common.sync.policy import Style

CONFIG_NAME = "config.yaml"
_PORTS = range(20_000, 32_000)
"""Below Linux's ephemeral range (32768 up), so that no outgoing connection takes the port while a service restarts
between two stages."""
_ATTEMPTS = 200
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - recognized here, not listened on


def effective(config: TandemConfig) -> TandemConfig:
    """The same configuration with ports in place of 0, and with the explorer known to the trainer.

    Raises ConfigError where the trainer's `explorers` leave out the explorer that is started beside it.
    """
    trainer_address = _with_port(config.trainer.address, taken=set())
    explorer_address = _with_port(config.explorer.address, taken={trainer_address.rpartition(":")[2]})
    own = config.explorer.advertise or _dialled(explorer_address)
    explorer = {"address": explorer_address}
    if config.explorer.trainer is None and _explorers_ask(config):
        explorer["trainer"] = _dialled(trainer_address)
    explorers = config.explorers
    if not explorers and config.explorer.trainer is None:
        explorers = (ExplorerAddress(address=own),)
    elif explorers and config.explorer.trainer is None and own not in {listed.address for listed in explorers}:
        raise ConfigError(
            f"`explorers` does not list {own}, the explorer that is started here, so its trainer would never dial it; "
            "leave `explorers` empty, or add it"
        )
    return config.model_copy(
        update={
            "trainer": config.trainer.model_copy(update={"address": trainer_address}),
            "explorer": config.explorer.model_copy(update=explorer),
            "explorers": explorers,
        }
    )


def write_effective(config: TandemConfig) -> Path:
    """Writes the configuration into the run's folder, in place of one from an earlier start. Raises StorageFailed."""
    path = config.run.folder / CONFIG_NAME
    beside = path.with_name(f".{CONFIG_NAME}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(to_yaml(config), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}", path=path) from error
    load_config(path, environ={})  # what the services will read
    return path


def trainer_target(config: TandemConfig) -> str:
    """Where the trainer is reached from this machine."""
    return _dialled(config.trainer.address)


def explorer_target(config: TandemConfig) -> str:
    """Where the explorer is reached from this machine."""
    return _dialled(config.explorer.address)


def _explorers_ask(config: TandemConfig) -> bool:
    return any(stage.sync.style is Style.EXPLORER_DRIVEN for stage in stage_configs(config))


def _dialled(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{_ANY_HOST.get(host, host)}:{port}"


def _with_port(address: str, taken: set[str]) -> str:
    host, _, port = address.rpartition(":")
    if int(port) != 0:
        return address
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    for number in random.sample(_PORTS, _ATTEMPTS):
        if str(number) in taken:
            continue
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host.strip("[]"), number))
            except OSError:
                continue
        return f"{host}:{number}"
    raise ConfigError(f"no free port was found on {host} in {_ATTEMPTS} attempts; is it an address of this machine?")
