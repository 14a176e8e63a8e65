"""Errors there and back: every kind keeps its class; nothing a peer writes makes reading its error fail."""

import base64
import inspect
from urllib.parse import quote

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata
from hypothesis import given, settings
from hypothesis import strategies as st

from common import errors
from common.errors import (
    PeerFailed,
    PeerUnavailable,
    ProtocolViolation,
    RunMismatch,
    StaleEpoch,
    TandemError,
    WaitTimedOut,
)
from common.rpc.errors import DETAILS_KEY, from_rpc_error, shortened, status_details
from common.rpc.peers import checked_address, checked_explorer_id, plain

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TandemError)]
METADATA_LIMIT = 8192
"""gRPC's default `grpc.max_metadata_size`; each entry counts 32 bytes beside its name and value (RFC 7541, 4.1)."""


def rpc_error(code: grpc.StatusCode, details: str, *entries: tuple[str, bytes | str]) -> AioRpcError:
    """An error as a call ends with it."""
    return AioRpcError(code, Metadata(), Metadata(*entries), details)


def over_the_wire(error: TandemError) -> AioRpcError:
    """What the other side gets."""
    return rpc_error(error.code, shortened(error.message), *status_details(error))


def with_info(info: error_details_pb2.ErrorInfo) -> bytes:
    """The details' bytes around an ErrorInfo."""
    packed = AnyMessage()
    packed.Pack(info)
    return status_pb2.Status(details=[packed]).SerializeToString()


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_keeps_its_class_message_and_metadata(kind: type[TandemError]) -> None:
    again = from_rpc_error(over_the_wire(kind("so it is", key="value", number=7)), "explorer-0")
    assert again.reason == kind.reason
    assert again.code is kind.code
    assert again.message == "explorer-0: so it is"
    assert again.metadata == {"key": "value", "number": "7"}


def test_no_two_errors_that_are_raised_share_a_reason() -> None:
    abstract = {TandemError, errors.PeerError}
    reasons = [kind.reason for kind in KINDS if kind not in abstract]
    assert len(reasons) == len(set(reasons))


texts = st.text(st.characters(), max_size=4000)


@settings(max_examples=50)
@given(texts, st.dictionaries(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=80), texts, max_size=40))
def test_an_error_always_fits_into_grpcs_metadata(message: str, metadata: dict[str, str]) -> None:
    error = RunMismatch(message)
    error.metadata = metadata
    ((name, details),) = status_details(error)
    # https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: percent-encoded message, base64 of binary values.
    written = {
        "grpc-status": "9",
        "grpc-message": quote(shortened(message), safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"),
        name: base64.b64encode(details).decode(),
    }
    assert sum(len(key) + len(value) + 32 for key, value in written.items()) < METADATA_LIMIT
    assert from_rpc_error(over_the_wire(error), "peer").reason == "RUN_MISMATCH"


@pytest.mark.parametrize("message", ["", "x" * 1500, "a\nb", "50 % of 3 é"])
def test_a_message_that_fits_is_left_as_it_is(message: str) -> None:
    assert shortened(message) == message


def test_a_message_that_does_not_fit_says_that_it_was_cut() -> None:
    assert shortened("x" * 1501) == "x" * 1497 + "..."
    # Each of these is written as four times %XX: 12 bytes, so (1500 - 3) / 12 of them fit.
    assert shortened("\N{SQUID}" * 1000) == "\N{SQUID}" * 124 + "..."


def test_half_a_surrogate_pair_is_replaced() -> None:
    error = RunMismatch("a file named \udcff", name="\udcff")
    again = from_rpc_error(over_the_wire(error), "peer")
    assert again.message == "peer: a file named ?"
    assert again.metadata == {"name": "?"}


@pytest.mark.parametrize("name", ["message", "self", "code", "reason", "args", ""])
def test_metadata_of_any_name_is_only_metadata(name: str) -> None:
    info = error_details_pb2.ErrorInfo(reason="STALE_EPOCH", domain="tandem.v1", metadata={name: "x"})
    again = from_rpc_error(
        rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "late", (DETAILS_KEY, with_info(info))), "peer"
    )
    assert isinstance(again, StaleEpoch)
    assert again.message == "peer: late"
    assert again.metadata == {name: "x"}


@given(st.binary(max_size=200))
def test_details_of_any_bytes_leave_the_status_code(details: bytes) -> None:
    error = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", (DETAILS_KEY, details)), "peer")
    assert isinstance(error, PeerUnavailable)


def test_details_with_a_corrupt_entry_leave_the_status_code() -> None:
    corrupt = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff")
    details = status_pb2.Status(details=[corrupt]).SerializeToString()
    error = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", (DETAILS_KEY, details)), "peer")
    assert isinstance(error, PeerUnavailable)


@pytest.mark.parametrize(("reason", "domain"), [("STALE_EPOCH", "other.v1"), ("NEW_IN_A_LATER_RELEASE", "tandem.v1")])
def test_a_reason_that_is_not_ours_leaves_the_status_code(reason: str, domain: str) -> None:
    details = with_info(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
    error = from_rpc_error(rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "late", (DETAILS_KEY, details)), "peer")
    assert isinstance(error, WaitTimedOut)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, PeerUnavailable),
        (grpc.StatusCode.CANCELLED, PeerUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, WaitTimedOut),
        (grpc.StatusCode.INVALID_ARGUMENT, ProtocolViolation),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolViolation),
        (grpc.StatusCode.INTERNAL, PeerFailed),
        (grpc.StatusCode.UNKNOWN, PeerFailed),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, PeerFailed),
    ],
)
def test_an_error_without_details_is_told_by_its_code(code: grpc.StatusCode, kind: type[TandemError]) -> None:
    assert type(from_rpc_error(rpc_error(code, "why"), "peer")) is kind


@pytest.mark.parametrize(
    "address", ["127.0.0.1:50051", "explorer-0.pod.svc:1", "[::1]:65535", "localhost:80", "[fe80::1]:8"]
)
def test_an_address_of_a_host_is_taken(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "unix:/x",
        "unix:///tmp/x.sock",
        "unix-abstract:x",
        "dns:///host:1",
        "ipv4:1.2.3.4:5",
        "host",
        "host:0",
        "host:65536",
        "host:1,host:2",
        "host:1\n",
        "ho st:1",
        "http://host:1",
        "user@host:1",
        "host:\N{ARABIC-INDIC DIGIT ONE}",
        "[::1]",
        "-host:1",
        f"{'h' * 300}:1",
    ],
)
def test_anything_else_is_no_address(address: str) -> None:
    with pytest.raises(ProtocolViolation):
        checked_address(address)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "../x", "x" * 65, ".hidden", "\N{SQUID}"])
def test_a_name_that_no_configuration_allows_is_refused(name: str) -> None:
    with pytest.raises(ProtocolViolation):
        checked_explorer_id(name)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=500))
def test_a_peers_text_is_shown_as_one_printable_line(text: str) -> None:
    line = plain(text)
    assert line.isprintable()
    assert len(line) <= 203
    if text.isprintable() and len(text) <= 200:
        assert line == text


def test_a_stream_that_ended_under_a_write_counts_as_a_broken_connection() -> None:
    """gRPC puts an INTERNAL of its own in the place of whatever the peer said; it is worth another try, and no fault."""
    found = from_rpc_error(rpc_error(grpc.StatusCode.INTERNAL, 'Internal error from Core: Failed "execute_batch"'), "p")
    assert isinstance(found, PeerUnavailable)
    assert isinstance(from_rpc_error(rpc_error(grpc.StatusCode.INTERNAL, "internal error"), "p"), PeerFailed)
