"""Reuse of the large buffers that versions arrive in: fresh pages cost ten times what written ones do."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import numpy.typing as npt

from common.errors import LimitExceeded

ByteArray = npt.NDArray[np.uint8]


class BufferPool:
    """Lends byte buffers, and keeps one of them, the newest, to lend it again.

    Nobody gives a buffer back: it is free as soon as nothing refers to it any more, neither the array nor a torch tensor
    or memoryview over it. So a version that somebody still reads is never overwritten. The one that is kept may be known
    to hold a version, which a delta then starts from.
    """

    def __init__(self) -> None:
        self._memory: ByteArray | None = None
        self._lent: weakref.ref[ByteArray] | None = None
        self._held = ""
        self._lock = threading.Lock()

    def take(self, size: int) -> ByteArray:
        """A buffer of `size` bytes with arbitrary contents. Raises LimitExceeded when there is no memory for it."""
        with self._lock:
            self._held = ""
            if self._memory is None or self._memory.size != size or not self._is_free():
                # Dropped first, so that an unused spare and its successor are never held together.
                self._memory = None
                self._memory = allocate(size)
            return self._lend(self._memory)

    def holds(self, content: str) -> bool:
        """Whether the buffer that is kept holds this version."""
        return bool(content) and self._held == content

    def take_holding(self, content: str) -> ByteArray | None:
        """A buffer with this version in it, to be changed; None when it is not here.

        It is the one that is kept when that is free, else a copy. What it holds is unknown until `mark` says so again.
        """
        with self._lock:
            if self._memory is None or not self.holds(content):
                return None
            if not self._is_free():
                copy = allocate(self._memory.size)
                np.copyto(copy, self._memory)
                self._memory = copy
            self._held = ""
            return self._lend(self._memory)

    def mark(self, lent: ByteArray, content: str) -> None:
        """The buffer holds this version, verified; without effect when another one was lent meanwhile."""
        with self._lock:
            if self._lent is not None and self._lent() is lent:
                self._held = content

    def _lend(self, memory: ByteArray) -> ByteArray:
        lent = memory[:]
        self._lent = weakref.ref(lent)
        return lent

    def _is_free(self) -> bool:
        return self._lent is None or self._lent() is None


def allocate(size: int) -> ByteArray:
    """Memory with arbitrary contents. Raises LimitExceeded when there is none."""
    try:
        return np.empty(size, dtype=np.uint8)
    except MemoryError as error:
        raise LimitExceeded(f"no memory for {size} bytes of weights") from error
