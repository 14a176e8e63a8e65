"""Asks a service for its health, for container health checks: `python -m common.rpc.health_probe HOST:PORT`."""

from __future__ import annotations

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_TIMEOUT = 3.0
"""Seconds: below the 5 s that Dockerfile and docker-compose.yml give a health check, so that the probe says why."""


def serving_status(target: str, *, service: str = "", timeout: float = DEFAULT_TIMEOUT) -> str:
    """The health of `service` at `target`: SERVING, NOT_SERVING, SERVICE_UNKNOWN or UNKNOWN.

    An empty `service` asks for the server as a whole. Raises grpc.RpcError when no answer came within `timeout` seconds.
    A service whose event loop is blocked still answers pings of HTTP/2; only a call with a deadline sees that it hangs.
    """
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when SERVING, else 1 with the status or the error on standard error."""
    parser = argparse.ArgumentParser(prog="python -m common.rpc.health_probe", description=__doc__)
    parser.add_argument("target", help="host:port of a service")
    parser.add_argument("--service", default="", help="full name of one gRPC service; default: the server as a whole")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        status = serving_status(options.target, service=options.service, timeout=options.timeout)
    except grpc.RpcError as error:
        sys.stderr.write(f"{options.target}: {error.code().name}: {error.details()}\n")
        return 1
    if status != "SERVING":
        sys.stderr.write(f"{options.target}: {status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
