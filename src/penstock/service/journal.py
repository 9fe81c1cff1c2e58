"""A file of JSON lines that several processes append to, each of which knows all of it.

A process that holds the file has read every line that others wrote, and nobody else writes meanwhile. So whatever
it appends can be decided on all lines before. A last line that is not whole belongs to a writer that was killed:
nobody relied on that line, and the next holder cuts it off, but never in a file that begins otherwise. `fsync` is
not called, so a machine that loses power may forget the last lines.

The lock is `flock`; the kernel releases it when its holder dies. Linux extends it to other machines over NFS, if
the file system is not mounted with `nolock` or `local_lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from penstock.errors import ServiceError

__all__ = ["Journal"]

#: a file that somebody holds for so long when it is opened is not shared
_PATIENCE_S = 5.0
#: what taking in a line raises that nobody wrote
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Journal:
    """One process's view of the file, which it holds in a `with` block.

    `take_in(number, line)` is called once for each line that others wrote, in the file's order. The first line of
    every such file begins with the word `kind`.
    """

    def __init__(self, path: str, kind: str, take_in: Callable[[int, Any], None]) -> None:
        self.path = path
        self._begins = json.dumps([kind])[:-1].encode()
        self._take_in = take_in
        #: lines, and their bytes, that were taken in or appended
        self._lines = self._whole = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as exc:
            raise ServiceError(f"the ledger {path} cannot be opened: {exc.strerror}") from None

    @property
    def empty(self) -> bool:
        """No line is known."""
        return not self._lines

    @property
    def grown(self) -> bool:
        """Whether somebody has written since the file was held last."""
        return os.fstat(self._file).st_size != self._whole

    def __enter__(self) -> None:
        """Hold the file: have it alone, with all of it taken in."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._catch_up()
        except BaseException:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            raise

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def await_free(self) -> None:
        """Wait a little while another program holds the file; `ServiceError` if it keeps it."""
        end = monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() > end:
                    raise ServiceError(
                        f"the ledger {self.path} has been locked by another program for {_PATIENCE_S:g} s; end "
                        "that program, or use another ledger"
                    ) from None
                sleep(0.01)
            else:
                fcntl.flock(self._file, fcntl.LOCK_UN)
                return

    def append(self, line: Any) -> None:
        """Write one line. The caller holds the file."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        rest = data
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as exc:
            # Whoever holds the file next cuts off what was written of the line.
            raise ServiceError(
                f"the ledger {self.path} cannot be written: {exc.strerror}; what clients have not acknowledged is "
                "handed out when the server is started again"
            ) from exc
        self._lines += 1
        self._whole += len(data)

    def close(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1

    def _catch_up(self) -> None:
        size = os.fstat(self._file).st_size
        if size == self._whole:
            return
        if size < self._whole:
            raise ServiceError(
                f"the ledger {self.path} was cut from {self._whole} to {size} bytes by somebody else"
            )
        with open(self._file, "rb", closefd=False) as file:
            file.seek(self._whole)
            if not self._whole and not (self._begins + b",").startswith(file.peek(1)[: len(self._begins) + 1]):
                raise ServiceError(f"{self.path} is no ledger; nothing was changed in it")
            for line in file:
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self._whole)
                    return
                try:
                    self._take_in(self._lines, json.loads(line))
                except _DAMAGE as exc:
                    raise ServiceError(f"{self.path} is damaged in line {self._lines + 1}: {exc}") from None
                self._lines += 1
                self._whole += len(line)
