"""`python -m explorer_service --config FILE`: the explorer as a process."""

from __future__ import annotations

from common.process import prepare_process

prepare_process()  # before torch and grpc are imported

from common.cli.service import service_command  # noqa: E402 - see above


def main() -> None:
    """Parses the command line, runs the service, and exits with its code."""
    from explorer_service.app import run_stage  # noqa: PLC0415 - torch is imported only when there is a run

    service_command("explorer", run_stage)


if __name__ == "__main__":
    main()
