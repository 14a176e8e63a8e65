"""A TCP proxy that fails on demand, in a thread of its own.

Directions: `up` is from who connected to the target, `down` is back.
"""

import random
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Direction = Literal["up", "down"]
BOTH: tuple[Direction, ...] = ("up", "down")
READ_BYTES = 64 << 10
HELD_BYTES = 1 << 20
"""Of one direction of a connection; with more the proxy stops reading, so that its sender feels it."""
TICK_SECONDS = 0.005
CONNECT_SECONDS = 5.0


@dataclass
class _Faults:
    """What goes wrong in one direction, from now on, on all connections."""

    delay: float = 0.0
    """Seconds by which every byte is late."""
    late_share: float = 0.0
    """Of the pieces read, those that are late by `late_by` more; what follows them waits, as TCP does."""
    late_by: float = 0.0
    bytes_per_second: float | None = None
    deaf: bool = False
    """Nothing is read: the sender's window fills."""
    swallows: bool = False
    """What is read goes nowhere: half-open."""
    corrupts: int = 0
    """So many of the next pieces get a bit flipped, in their middle."""
    corrupts_above: int = 0
    """... of those that have more bytes."""


@dataclass(eq=False)
class _Pipe:
    """One direction of one connection."""

    source: socket.socket
    target: socket.socket
    direction: Direction
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    held: int = 0
    free_at: float = 0.0
    ended: bool = False


class TcpProxy:
    """Listens on `address`; takes every connection to `target` until it is told otherwise."""

    def __init__(self, target: str, *, seed: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.corrupted = 0
        """Pieces in which a bit was flipped."""
        self.connections = 0
        """Connections ever taken."""
        self._faults: dict[Direction, _Faults] = {"up": _Faults(), "down": _Faults()}
        self._pipes: list[_Pipe] = []
        self._refuses = False
        self._lock = threading.Lock()
        self._pick = random.Random(seed)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing = True
        self._thread.join(10)
        self.cut(refuse=True)
        self._listener.close()

    def cut(self, *, refuse: bool = False) -> None:
        """Resets all connections; with `refuse` new ones are reset too, until `heal`."""
        with self._lock:
            self._refuses = refuse
            for pipe in self._pipes:
                _reset(pipe.source)
            self._pipes = []

    def delay(self, seconds: float) -> None:
        """Every byte is late by so much, in both directions."""
        self._set(BOTH, delay=seconds)

    def late(self, share: float, seconds: float) -> None:
        """This share of the pieces is late by so much, in both directions."""
        self._set(BOTH, late_share=share, late_by=seconds)

    def throttle(self, bytes_per_second: float) -> None:
        """No more than this passes, on each connection and in each direction."""
        self._set(BOTH, bytes_per_second=bytes_per_second)

    def swallow(self, *directions: Direction) -> None:
        """What comes goes nowhere, and nobody is told."""
        self._set(directions or BOTH, swallows=True)

    def stop_reading(self, *directions: Direction) -> None:
        """Nothing more is taken from the sender."""
        self._set(directions, deaf=True)

    def corrupt(self, direction: Direction, pieces: int, *, above: int = 0) -> None:
        """A bit is flipped in each of the next pieces of more than `above` bytes."""
        self._set((direction,), corrupts=pieces, corrupts_above=above)

    def heal(self) -> None:
        """Everything passes again."""
        with self._lock:
            self._refuses = False
            self._faults = {"up": _Faults(), "down": _Faults()}

    def _set(self, directions: tuple[Direction, ...], **changes: float | bool | None) -> None:
        with self._lock:
            for direction in directions:
                for name, value in changes.items():
                    setattr(self._faults[direction], name, value)

    def _run(self) -> None:
        while not self._closing:
            with self._lock:
                self._accept()
                for pipe in list(self._pipes):
                    self._read(pipe)
                    self._write(pipe)
                self._pipes = [pipe for pipe in self._pipes if not pipe.ended]
                readers = [pipe.source for pipe in self._pipes if pipe.held < HELD_BYTES and not self._is_deaf(pipe)]
                is_waiting = any(pipe.waiting for pipe in self._pipes)
            _until_readable([self._listener, *readers], TICK_SECONDS if is_waiting else 10 * TICK_SECONDS)

    def _is_deaf(self, pipe: _Pipe) -> bool:
        return self._faults[pipe.direction].deaf

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except BlockingIOError:
                return
            self.connections += 1
            if self._refuses:
                _reset(near)
                continue
            try:
                far = socket.create_connection(self._target, CONNECT_SECONDS)
            except OSError:
                _reset(near)
                continue
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pipes += [_Pipe(near, far, "up"), _Pipe(far, near, "down")]

    def _read(self, pipe: _Pipe) -> None:
        faults = self._faults[pipe.direction]
        while pipe.held < HELD_BYTES and not faults.deaf:
            try:
                data = pipe.source.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._end(pipe)
                return
            if not data:
                self._end(pipe)
                return
            if faults.swallows:
                continue
            if faults.corrupts and len(data) > faults.corrupts_above:
                faults.corrupts -= 1
                self.corrupted += 1
                flipped = bytearray(data)
                flipped[len(data) // 2] ^= 1 << self._pick.randrange(8)
                data = bytes(flipped)
            late = faults.late_by if self._pick.random() < faults.late_share else 0.0
            due = time.monotonic() + faults.delay + late
            pipe.waiting.append((max(due, pipe.waiting[-1][0] if pipe.waiting else 0.0), data))
            pipe.held += len(data)

    def _write(self, pipe: _Pipe) -> None:
        rate = self._faults[pipe.direction].bytes_per_second
        now = time.monotonic()
        while pipe.waiting and pipe.waiting[0][0] <= now and pipe.free_at <= now:
            due, data = pipe.waiting.popleft()
            part = data if rate is None else data[: max(1, int(rate * 2 * TICK_SECONDS))]
            try:
                sent = pipe.target.send(part)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end(pipe)
                return
            pipe.held -= sent
            if rate is not None:
                pipe.free_at = max(now, pipe.free_at) + sent / rate
            if sent < len(data):
                pipe.waiting.appendleft((due, data[sent:]))
                if sent < len(part):
                    return

    def _end(self, pipe: _Pipe) -> None:
        """The connection goes down with its other direction: gRPC keeps none that is half closed."""
        for one in self._pipes:
            if one.source in {pipe.source, pipe.target}:
                one.ended = True
                one.source.close()


def _reset(end: socket.socket) -> None:
    # Lingering for no time makes the kernel send RST.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    end.close()


def _until_readable(sockets: list[socket.socket], seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            if one.fileno() >= 0:
                selector.register(one, selectors.EVENT_READ)
        selector.select(seconds)
