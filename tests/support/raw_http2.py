"""HTTP/2 frames by hand, for what no client of gRPC's would send."""

import socket
import struct
from collections.abc import Mapping

SECONDS = 30.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
ACK, END_HEADERS = 1, 4
CANCEL = 8
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """What a client says of itself."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in values.items()))


def call(path: str, stream: int, metadata: Mapping[str, str]) -> bytes:
    """The head of a call; its messages may follow."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "abuse",
        "content-type": "application/grpc",
        "te": "trailers",
        **metadata,
    }
    # RFC 7541, section 6.2.2: literal fields, neither indexed nor compressed.
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return frame(HEADERS, END_HEADERS, stream, block)


def message(length: int, payload: bytes = b"") -> bytes:
    """A gRPC message that claims a length."""
    return b"\0" + struct.pack(">I", length) + payload


def connected(address: str, first: bytes = b"") -> socket.socket:
    """A connection; `first` is sent at once. The peer may have closed it already."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), SECONDS)
    send(connection, first)
    return connection


def send(connection: socket.socket, data: bytes) -> bool:
    """Whether the other side still took it."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it; what it sent is read and thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)
    return True


def _text(text: str) -> bytes:
    """RFC 7541, section 5.2, for texts up to 126 bytes."""
    assert len(text) < 127, "longer texts have their length in several bytes"
    return bytes((len(text),)) + text.encode()
