"""A file of JSON lines that several processes append to, each of which knows all of it.

A process that holds the file has read every line that others wrote, and nobody else writes meanwhile. So whatever
it appends can be decided on all lines before. A last line that is not whole belongs to a writer that was killed:
nobody relied on that line, and the next holder cuts it off, but never in a file that begins otherwise. `fsync` is
not called, so a machine that loses power may forget the last lines.

The file may be written anew, with fewer lines. Its last line then says so, in the file that others have open: who
reads that line opens the new file, and reads all of it. The new file takes the place of the old one at once, and
whoever held the old one holds the new one.

The lock is `flock`; the kernel releases it when its holder dies. Linux extends it to other machines over NFS, if
the file system is not mounted with `nolock` or `local_lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any

from penstock.errors import ServiceError

#: a file that somebody holds for so long when it is opened is not shared
_PATIENCE_S = 5.0
#: the line that says that the file was written anew
_MOVED = "moved"
#: what taking in a line raises that nobody wrote
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Journal:
    """One process's view of the file, which it holds in a `with` block.

    `take_in(number, line)` is called once for each line that others wrote, in the file's order. The first line of
    every such file begins with the word `kind`.
    """

    def __init__(
        self, path: str, kind: str, take_in: Callable[[int, Any], None], clear: Callable[[], None]
    ) -> None:
        self.path = path
        self._begins = json.dumps([kind])[:-1].encode()
        self._take_in = take_in
        self._clear = clear
        #: lines, and their bytes, that were taken in or appended
        self.lines = self._whole = 0
        self._file = self._opened()

    def _opened(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as exc:
            raise ServiceError(f"the ledger {self.path} cannot be opened: {exc.strerror}") from None

    @property
    def empty(self) -> bool:
        """No line is known."""
        return not self.lines

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
        rest = data = _bytes_of(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as exc:
            # Whoever holds the file next cuts off what was written of the line.
            raise ServiceError(
                f"the ledger {self.path} cannot be written: {exc.strerror}; what clients have not acknowledged is "
                "handed out when the server is started again"
            ) from exc
        self.lines += 1
        self._whole += len(data)

    def write_anew(self, lines: Sequence[Any]) -> bool:
        """Put these lines in the place of all; False, and nothing has changed, if the folder does not allow it.

        The caller holds the file.
        """
        target = os.path.realpath(self.path)
        partial, data = f"{target}.new", b"".join(map(_bytes_of, lines))
        new = -1
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)  # of a server that was killed
            new = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            fcntl.flock(new, fcntl.LOCK_EX)
            before = os.fstat(self._file)
            with contextlib.suppress(PermissionError):
                os.fchown(new, before.st_uid, before.st_gid)
            os.fchmod(new, stat.S_IMODE(before.st_mode))
            with open(new, "wb", closefd=False) as file:
                file.write(data)
            os.fsync(new)
            # A server that is killed between these two has moved nothing: see `_move`.
            self.append([_MOVED])
            os.replace(partial, target)
        except BaseException as exc:
            if new >= 0:
                os.close(new)
            if isinstance(exc, (OSError, ServiceError)):
                return False
            raise
        os.close(self._file)
        self._file, self.lines, self._whole = new, len(lines), len(data)
        return True

    def _move(self) -> bool:
        """Whether the file was written anew: it is the new one from here on, held, and nothing of it is known."""
        new = self._opened()
        if os.path.sameopenfile(new, self._file):
            os.close(new)
            return False
        fcntl.flock(new, fcntl.LOCK_EX)
        os.close(self._file)
        self._file, self.lines, self._whole = new, 0, 0
        self._clear()
        return True

    def close(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1

    def _catch_up(self) -> None:
        while self._read_on():
            pass

    def _read_on(self) -> bool:
        """Take in what others have written; whether to go on in another file."""
        size = os.fstat(self._file).st_size
        if size == self._whole:
            return False
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
                    return False
                try:
                    said = json.loads(line)
                    if said == [_MOVED]:
                        if self._move():
                            return True
                    else:
                        self._take_in(self.lines, said)
                except _DAMAGE as exc:
                    raise ServiceError(f"{self.path} is damaged in line {self.lines + 1}: {exc}") from None
                self.lines += 1
                self._whole += len(line)
        return False


def _bytes_of(line: Any) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"
