"""How the parent learns that a process has ended, and how: from the server that forked it, or from the system.

Nothing here waits, and whoever uses one from several threads takes turns.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from penstock.executors.newborn import END, PID, RSS_UNIT

_SAID = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGABRT": "aborted",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. Neither code nor signal: nobody knows. `peak_bytes` is 0 where it is not known.

    >>> print(Exit(code=3, signal=None, peak_bytes=0))
    exited with code 3
    >>> print(Exit(code=None, signal=9, peak_bytes=1_200_000_000))
    killed by SIGKILL after using 1.2 GB (the system may have run out of memory)
    """

    code: int | None
    signal: int | None
    peak_bytes: int

    def __str__(self) -> str:
        if self.code is not None:
            return f"exited with code {self.code}"
        if self.signal is None:
            return "ended, and nobody can say how"
        name = _signal_name(self.signal)
        if name == "SIGKILL":
            used = f" after using {_size(self.peak_bytes)}" if self.peak_bytes else ""
            return f"killed by SIGKILL{used} (the system may have run out of memory)"
        return f"{_SAID[name]} ({name})" if name in _SAID else f"killed by {name}"


UNKNOWN = Exit(None, None, 0)


class _Child:
    """What both kinds of child have: a descriptor that becomes readable when the process ends, and how it ended."""

    fd: int
    exit: Exit | None = None

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class ServedChild(_Child):
    """A process that a server forked. The server reports on it by a pipe, and kills it when the lifeline closes."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        #: None until the server has forked it
        self.pid: int | None = None
        #: errno of the fork that failed
        self.refused: int | None = None
        #: the server has ended without a report, so only the lifeline can still end the child
        self.orphaned = False
        self._heard = b""

    def look(self) -> None:
        """Take in what has been said so far."""
        while self.exit is None:
            try:
                said = os.read(self.fd, PID.size + END.size)
            except BlockingIOError:
                return
            self._heard += said
            if self.pid is None and len(self._heard) >= PID.size:
                (pid,) = PID.unpack_from(self._heard)
                self.pid, self.refused = (pid, None) if pid > 0 else (None, -pid)
            if len(self._heard) == PID.size + END.size:
                self.exit = _exit_of(*END.unpack_from(self._heard, PID.size))
            elif not said:
                self.exit = UNKNOWN
                self.orphaned = self.refused is None

    def kill(self) -> None:
        """Only where neither kernel nor server see to it; Linux needs no pid, which may be another's by now."""
        if self.orphaned and self.pid is not None and sys.platform != "linux":
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


class OwnChild(_Child):
    """A child of this very process. Its end shows on a pidfd, or else on a pipe that it holds open, `tie`."""

    refused = None
    orphaned = False

    def __init__(self, pid: int, tie: int | None, inherited_peak: int = 0) -> None:
        self.pid: int | None = pid
        self._pid = pid
        self._pidfd = tie is None
        self.fd = os.pidfd_open(pid) if tie is None else tie
        #: Linux counts the memory of the process it was started from until exec
        self._inherited_peak = inherited_peak

    def look(self) -> None:
        """See whether it has ended."""
        if self.exit is not None:
            return
        try:
            pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            self.exit = UNKNOWN
            return
        if pid:
            peak = usage.ru_maxrss * RSS_UNIT
            self.exit = _exit_of(status, peak if peak > self._inherited_peak else 0)

    def kill(self) -> None:
        if self.exit is None and self.fd >= 0:
            with suppress(OSError):
                if self._pidfd:
                    signal.pidfd_send_signal(self.fd, signal.SIGKILL)
                else:
                    os.kill(self._pid, signal.SIGKILL)


def own_peak_bytes() -> int:
    """The most memory this process had; on Linux a program that it starts now begins with that figure."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT if sys.platform == "linux" else 0


@cache
def has_pidfd() -> bool:
    """Old kernels and some sandboxes have the name and not the call."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def readable(fd: int, timeout_s: float | None, others: Sequence[int] = ()) -> list[int]:
    """Wait until there is something to read, or the end, on `fd`, or until one of the others is shut down.

    Returns those of which that is so.
    """
    if fd < 0:
        return [fd]
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    for other in others:
        if other >= 0:
            poll.register(other, 0)
    return [one for one, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1e3)]


def _exit_of(status: int, peak_bytes: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(code, None, peak_bytes) if code >= 0 else Exit(None, -code, peak_bytes)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
