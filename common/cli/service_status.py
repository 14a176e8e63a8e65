"""`tandem status`: what a service does and what it waits for."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import grpc
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from common.cli.picture import described
from common.cli.words import clean, duration, number, state_words
from common.config.security import Role, SecurityConfig
from common.errors import MalformedData, PeerUnavailable, ProtocolViolation
from common.rpc.blocking import open_blocking_channel
from common.rpc.credentials import Caller
from common.rpc.health_probe import told_health
from common.wire.status import timestamp_from_proto, wait_from_proto
from protos.tandem.v1 import explorer_pb2, explorer_pb2_grpc, trainer_pb2, trainer_pb2_grpc

WATCH_SECONDS = 1.0
_SHOWN_METRICS = 60

TrainerStatus = trainer_pb2.TrainerServiceGetStatusResponse
ExplorerStatus = explorer_pb2.ExplorerServiceGetStatusResponse


def ask(channel: grpc.Channel, address: str, timeout: float) -> TrainerStatus | ExplorerStatus:
    """The status of whatever service listens there: a server that does not know the one method is asked for the other.

    Raises PeerUnavailable when nobody answers in time, ProtocolViolation when it is no service of ours.
    """
    trainer: Any = trainer_pb2_grpc.TrainerServiceStub(channel)
    explorer: Any = explorer_pb2_grpc.ExplorerServiceStub(channel)
    deadline = time.monotonic() + timeout
    for stub, request in (
        (trainer, trainer_pb2.TrainerServiceGetStatusRequest()),
        (explorer, explorer_pb2.ExplorerServiceGetStatusRequest()),
    ):
        try:
            status: TrainerStatus | ExplorerStatus = stub.GetStatus(
                request, timeout=max(0.01, deadline - time.monotonic())
            )
        except grpc.RpcError as error:
            failed = cast("grpc.Call", error)  # every RpcError that a call raises is its Call too
            code = failed.code()
            if code is grpc.StatusCode.UNIMPLEMENTED:
                continue
            why = clean(failed.details() or code.name)
            raise PeerUnavailable(f"{address} does not answer ({code.name}): {why}") from error
        return status
    raise ProtocolViolation(f"{address} answers, but is neither a trainer nor an explorer")


def show_status(address: str, security: SecurityConfig, *, as_json: bool, watch: bool, timeout: float) -> None:
    """Prints the status once, or again and again until Ctrl-C. Raises as `ask`; while watching only at the first time."""
    console = Console(highlight=False)
    with open_blocking_channel(address, Caller(security, Role.OPERATOR)) as channel:
        status = ask(channel, address, timeout)
        if not watch:
            print(to_json(status)) if as_json else console.print(rendered(status, address, time.time()))
            return
        if as_json or not console.is_terminal:
            _watch_lines(channel, address, timeout, console, as_json=as_json)
        else:
            _watch_live(channel, address, timeout, console)


def probe_health(address: str, security: SecurityConfig, timeout: float) -> int:
    """Prints SERVING, or says on standard error what it is instead; returns the exit code."""
    with open_blocking_channel(address, Caller(security, Role.OPERATOR)) as channel:
        code = told_health(channel, address, timeout=timeout)
    if code == 0:
        print("SERVING")
    return code


def to_json(status: TrainerStatus | ExplorerStatus) -> str:
    """One line: the message in protobuf's JSON mapping, fields named as in the .proto, and which service it is."""
    service = "trainer" if isinstance(status, TrainerStatus) else "explorer"
    fields = json_format.MessageToDict(
        status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps({"service": service, **fields})


def rendered(status: TrainerStatus | ExplorerStatus, address: str, now: float) -> RenderableType:
    """The status for people; `now` in Unix seconds."""
    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    if isinstance(status, TrainerStatus):
        state = state_words(trainer_pb2.TrainerState, status.state)
        head = _head("trainer", address, status, state, now)
        _trainer_rows(table, status)
    else:
        state = state_words(explorer_pb2.ExplorerState, status.state)
        head = _head(f"explorer {clean(status.explorer_id)}", address, status, state, now)
        _explorer_rows(table, status)
    parts: list[RenderableType] = [head, table]
    parts.extend(Text(f"waits for {_wait(wait, now)}", style="yellow") for wait in status.waits)
    if isinstance(status, TrainerStatus) and status.explorers:
        parts.append(_explorers(status))
    if status.metrics:
        parts.append(_metrics(status))
    return Group(*parts)


def _head(who: str, address: str, status: TrainerStatus | ExplorerStatus, state: str, now: float) -> Text:
    text = Text.assemble((who, "bold"), f" at {address}, run ", (clean(status.run_name), "bold"))
    text.append(f", stage {clean(status.stage)}: ")
    text.append(state, style="bold cyan")
    if status.reason:
        text.append(f" ({clean(status.reason)})")
    since = _seconds(status.state_since)
    if since is not None:
        text.append(f", for {duration(now - since)}", style="dim")
    if status.failure:
        text.append(f"\n{clean(status.failure)}", style="bold red")
    return text


def _trainer_rows(table: Table, status: TrainerStatus) -> None:
    table.add_row("step", f"{status.step} of {status.total_steps}" if status.total_steps else str(status.step))
    table.add_row("run epoch", str(status.run_epoch))
    table.add_row("published", _version(status.published))
    table.add_row("saved", f"step {status.saved_step}" if status.saved_step else "not yet")
    table.add_row("queued", f"{status.queued_groups} groups")
    table.add_row("software", clean(status.software_version))


def _explorer_rows(table: Table, status: ExplorerStatus) -> None:
    table.add_row("explore step", str(status.explore_step))
    table.add_row("policy", _version(status.policy_version))
    table.add_row(
        "groups",
        f"{status.groups_started} started, {status.groups_running} running, credit up to {status.credit_limit}",
    )
    table.add_row(
        "batches",
        f"{status.last_sequence} made, acknowledged up to {status.frontier}, {status.batches_spooled} in the spool",
    )
    table.add_row("software", clean(status.software_version))


def _explorers(status: TrainerStatus) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("explorer", "address", "link", "applied", "received", "acknowledged", "credit"):
        table.add_column(name)
    for link in status.explorers:
        state = "finished" if link.finished else "connected" if link.connected else "not connected"
        table.add_row(
            Text(clean(link.explorer_id)),
            Text(clean(link.address)),
            Text(state, style="green" if link.connected else "yellow"),
            _version(link.applied),
            str(link.received_through),
            str(link.frontier),
            str(link.credit_limit),
        )
    return table


def _metrics(status: TrainerStatus | ExplorerStatus) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name in sorted(status.metrics)[:_SHOWN_METRICS]:
        table.add_row(Text(clean(name, 80)), number(status.metrics[name], 4))
    return table


def _watch_lines(channel: grpc.Channel, address: str, timeout: float, console: Console, *, as_json: bool) -> None:
    while True:
        try:
            status = ask(channel, address, timeout)
        except PeerUnavailable as error:
            print(error.message, file=sys.stderr, flush=True)
        else:
            print(to_json(status), flush=True) if as_json else console.print(rendered(status, address, time.time()))
        time.sleep(WATCH_SECONDS)


def _watch_live(channel: grpc.Channel, address: str, timeout: float, console: Console) -> None:
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            try:
                shown = rendered(ask(channel, address, timeout), address, time.time())
            except PeerUnavailable as error:
                shown = Text(error.message, style="yellow")
            live.update(shown, refresh=True)
            time.sleep(WATCH_SECONDS)


def _wait(message: explorer_pb2.Wait, now: float) -> str:
    try:
        return clean(described(wait_from_proto(message), now))
    except MalformedData as error:
        return clean(f"{message.waiting_for} ({error.message})")


def _seconds(timestamp: Timestamp) -> float | None:
    try:
        seconds = timestamp_from_proto(timestamp)
    except MalformedData:
        return None
    return seconds or None


def _version(version: Any) -> str:
    if not version.run_epoch:
        return "none yet"
    return f"version {version.step} (epoch {version.run_epoch}, {clean(version.manifest_hash, 12)})"
