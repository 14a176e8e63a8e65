"""A TCP proxy as wide as a slow network: `support_throttle.py HOST:PORT BYTES_PER_SECOND`, each direction for itself."""

from __future__ import annotations

import socket
import sys
import threading
import time

from support import say, until_input_ends

PIECE_BYTES = 64 << 10
BUFFER_BYTES = 1 << 20
"""Of the sockets: what a sender may be ahead of the line."""
BURST_SECONDS = 0.005
"""The line may catch up so much after it was not scheduled in time."""


def pump(source: socket.socket, target: socket.socket, rate: float) -> None:
    """Passes bytes on at the line's rate, until one end closes."""
    free_at = time.monotonic()
    piece = memoryview(bytearray(PIECE_BYTES))
    try:
        while count := source.recv_into(piece):
            free_at = max(free_at, time.monotonic() - BURST_SECONDS) + count / rate
            if (early := free_at - time.monotonic()) > 0:
                time.sleep(early)
            target.sendall(piece[:count])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def serve(listener: socket.socket, target: tuple[str, int], rate: float) -> None:
    """Takes connections for ever, each with a connection of its own to the target."""
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(target)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=pump, args=(source, sink, rate), daemon=True).start()


def main() -> None:
    """Listens on a port of its own, and says which."""
    host, _, port = sys.argv[1].rpartition(":")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    threading.Thread(target=serve, args=(listener, (host, int(port)), float(sys.argv[2])), daemon=True).start()
    say(address=f"127.0.0.1:{listener.getsockname()[1]}")
    until_input_ends()


if __name__ == "__main__":
    main()
