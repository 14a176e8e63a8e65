"""A TCP proxy that lets every byte arrive later, in both directions: `support_proxy.py HOST:PORT MILLISECONDS`.

Only time is added: the pipe is as wide as its memory allows, as a long cable is.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import sys
import threading
import time

from support import say, until_input_ends

CHUNK_BYTES = 256 << 10
IN_FLIGHT_BYTES = 64 << 20
"""Per direction; above it the proxy stops reading, so that a stalled reader is felt by the sender."""


class Pipe:
    """One direction of one connection: a thread that reads, and one that writes when the bytes are due."""

    def __init__(self, source: socket.socket, target: socket.socket, seconds: float) -> None:
        self._source = source
        self._target = target
        self._seconds = seconds
        self._chunks: collections.deque[tuple[float, bytes]] = collections.deque()
        self._held = 0
        self._changed = threading.Condition()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        data = b"-"
        while data:
            try:
                data = self._source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            with self._changed:
                self._changed.wait_for(lambda: self._held < IN_FLIGHT_BYTES)
                self._chunks.append((time.monotonic() + self._seconds, data))
                self._held += len(data)
                self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._chunks))
                due, data = self._chunks.popleft()
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            try:
                if not data:
                    self._target.shutdown(socket.SHUT_WR)
                    return
                self._target.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._source.shutdown(socket.SHUT_RD)
                return
            finally:
                with self._changed:
                    self._held -= len(data)
                    self._changed.notify_all()


def serve(listener: socket.socket, target: tuple[str, int], seconds: float) -> None:
    """Takes connections for ever, each with a connection of its own to the target."""
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(target)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Pipe(near, far, seconds)
        Pipe(far, near, seconds)


def main() -> None:
    """Listens on a port of its own, and says which."""
    host, _, port = sys.argv[1].rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    arguments = (listener, (host, int(port)), float(sys.argv[2]) / 1000)
    threading.Thread(target=serve, args=arguments, daemon=True).start()
    say(address=f"127.0.0.1:{listener.getsockname()[1]}")
    until_input_ends()


if __name__ == "__main__":
    main()
