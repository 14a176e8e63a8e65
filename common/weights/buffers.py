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
    or memoryview over it. So a version that somebody still reads is never overwritten.
    """

    def __init__(self) -> None:
        self._memory: ByteArray | None = None
        self._lent: weakref.ref[ByteArray] | None = None
        self._lock = threading.Lock()

    def take(self, size: int) -> ByteArray:
        """A buffer of `size` bytes with arbitrary contents. Raises LimitExceeded when there is no memory for it."""
        with self._lock:
            if self._memory is None or self._memory.size != size or not self._is_free():
                # Dropped first, so that an unused spare and its successor are never held together.
                self._memory = None
                try:
                    self._memory = np.empty(size, dtype=np.uint8)
                except MemoryError as error:
                    raise LimitExceeded(f"no memory for {size} bytes of weights") from error
            lent = self._memory[:]
            self._lent = weakref.ref(lent)
            return lent

    def _is_free(self) -> bool:
        return self._lent is None or self._lent() is None
