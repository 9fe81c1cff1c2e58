"""Wake a thread that waits for its sockets."""

from __future__ import annotations

import contextlib
import os
import threading


class Waker:
    """A descriptor that is readable after `wake`. Any thread may call `wake`, even after `close`.

    The lock is for that: a byte must not be written to whatever has the number of a closed descriptor by then.
    """

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)
        self._closed = False
        self._lock = threading.RLock()

    def fileno(self) -> int:
        return self._reads

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self._lock, contextlib.suppress(BlockingIOError):  # enough bytes are there
            if not self._closed:
                os.write(self._writes, b"\0")

    def clear(self) -> None:
        """Have it wait again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reads, 4096)

    def close(self) -> None:
        """After this nobody may wait for it."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reads)
                os.close(self._writes)
