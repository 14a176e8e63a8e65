"""Asks a service for its health, for container health checks: `python -m common.rpc.health_probe HOST:PORT`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_TIMEOUT = 3.0
"""Seconds: below the 5 s that Dockerfile and docker-compose.yml give a health check, so that the probe says why."""
EXIT_BAD_CONFIG = 2


def serving_status(channel: grpc.Channel, *, service: str = "", timeout: float = DEFAULT_TIMEOUT) -> str:
    """The health of `service` at the channel's end: SERVING, NOT_SERVING, SERVICE_UNKNOWN or UNKNOWN.

    An empty `service` asks for the server as a whole. Raises grpc.RpcError when no answer came within `timeout` seconds.
    A service whose event loop is blocked still answers pings of HTTP/2; only a call with a deadline sees that it hangs.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    response = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def told_health(channel: grpc.Channel, target: str, *, service: str = "", timeout: float = DEFAULT_TIMEOUT) -> int:
    """Exit code 0 when SERVING, else 1 with the status or the error on standard error."""
    try:
        status = serving_status(channel, service=service, timeout=timeout)
    except grpc.RpcError as error:
        sys.stderr.write(f"{target}: {error.code().name}: {error.details()}\n")
        return 1
    if status != "SERVING":
        sys.stderr.write(f"{target}: {status}\n")
    return 0 if status == "SERVING" else 1


def main(arguments: list[str] | None = None) -> int:
    """As `told_health`; 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m common.rpc.health_probe", description=__doc__)
    parser.add_argument("target", help="host:port of a service")
    parser.add_argument("--service", default="", help="full name of one gRPC service; default: the server as a whole")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds (default: %(default)s)")
    parser.add_argument(
        "--config", type=Path, help="YAML file whose section `security` says how to call; default: plain"
    )
    parser.add_argument(
        "--role",
        default="operator",
        choices=("trainer", "explorer", "operator"),
        help="with --config: whose certificate to show (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.config is None:
        with grpc.insecure_channel(options.target) as channel:
            return told_health(channel, options.target, service=options.service, timeout=options.timeout)
    # Imported here: without TLS a probe, which runs every few seconds, starts without pydantic.
    from common.config.load import load_security  # noqa: PLC0415 - see above
    from common.config.security import Role  # noqa: PLC0415 - see above
    from common.errors import ConfigError  # noqa: PLC0415 - see above
    from common.rpc.blocking import open_blocking_channel  # noqa: PLC0415 - see above
    from common.rpc.credentials import Caller  # noqa: PLC0415 - see above

    try:
        caller = Caller(load_security(options.config), Role(options.role))
        with open_blocking_channel(options.target, caller) as channel:
            return told_health(channel, options.target, service=options.service, timeout=options.timeout)
    except ConfigError as error:
        sys.stderr.write(f"{error.message}\n")
        return EXIT_BAD_CONFIG


if __name__ == "__main__":
    sys.exit(main())
