"""Templates: processes that have loaded the programs of some workers once, and from which these are forked.

A program may refer to modules that take seconds to import, and hold objects that take long to unpickle. A
template pays for that once. Its workers begin with all of it in place, in memory that they share until one of
them writes to it.

Guarantees:

* Programs are loaded once per template, however many workers are forked from it.
* Workers are forked from a process with one thread and without an open file that loading has left. Where
  loading leaves more, workers are forked from the plain server and load their programs themselves; `why` says so.
* A template ends with the last process that was forked from it, and with this process, however it ends.
* A template that was killed is replaced at the next start. One that was killed twice while it was loading is not.

There are templates on Linux only: elsewhere a process cannot count its own threads.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from penstock.executors import newborn, servers
from penstock.executors.startup import Process, StartOptions

#: what a template runs first; named and not imported, since it is further up
_ENTRY = "penstock.remote.preload:load"
#: descriptors in one message at the most; the kernel allows 253
MOST_FDS = 200
#: a pickle of at least this many bytes justifies a template by itself
_LARGE_BYTES = 1_000_000
#: how often a template may die while it loads
_MOST_DEATHS = 2

_numbers = count(1)


class _HasFd(Protocol):
    @property
    def fd(self) -> int: ...


class Loadable(Protocol):
    """A program, as `penstock.memory.parcel` packs it."""

    token: int
    data: bytes
    #: the packages that unpacking it imports
    packages: frozenset[str]
    #: modules that its functions import when they are called
    later: tuple[str, ...]

    @property
    def blocks(self) -> Sequence[_HasFd]: ...


class Template(servers.Server):
    """One template, as the process that uses it sees it. It loads its programs in the background."""

    def __init__(self, programs: Sequence[Loadable], options: StartOptions) -> None:
        self.key = ("template", next(_numbers))
        self.users = 0
        #: the programs it has, by their tokens
        self.tokens = frozenset(program.token for program in programs)
        self._lock = threading.Lock()
        self._told = b""
        #: why workers cannot be forked from it; empty if they can, None as long as it has not said
        self._why: str | None = None
        self._dead = False
        self.process = Process(_ENTRY, f"penstock-template-{self.key[1]}", options, is_template=True)
        self.control = self.process.socket
        try:
            self._send(programs)
        except BaseException:
            self.process.close()
            raise

    def _send(self, programs: Sequence[Loadable]) -> None:
        server = self.process.server
        assert server is not None
        listed = [(one.token, one.data, len(one.blocks), list(one.later)) for one in programs]
        with servers.request_file({"programs": listed}) as file:
            socket.send_fds(self.control, [b"+"], [server.control.fileno(), file])
        for program in programs:
            fds = [block.fd for block in program.blocks]
            for first in range(0, len(fds), MOST_FDS):
                socket.send_fds(self.control, [b"+"], fds[first : first + MOST_FDS])

    @property
    def loading(self) -> bool:
        return self._look() is None and not self._dead

    @property
    def dead(self) -> bool:
        """It has ended, as far as has been seen."""
        self._look()
        return self._dead

    @property
    def loaded(self) -> bool:
        """Processes forked from it have its programs. Surely known once one of them has been born."""
        return self._look() == ""

    @property
    def why(self) -> str:
        """Why workers cannot be forked from it. Empty if they can, or if that is not known yet."""
        return self._look() or ""

    def _look(self) -> str | None:
        """Take in what the template has said so far."""
        with self._lock:
            while self._why is None and not self._dead:
                try:
                    said = self.control.recv(4096, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError:
                    said = b""
                self._dead = not said
                self._told += said
                size = newborn.VERDICT.size
                if len(self._told) >= size and len(self._told) == size + newborn.VERDICT.unpack_from(self._told)[0]:
                    self._why = self._told[size:].decode(errors="replace")
            return self._why

    def close(self) -> None:
        self.process.close()

    def failed(self) -> bool:
        end = self.process.exit(0)
        return end is not None and end.code != 0 and end.signal != signal.SIGKILL

    def forget(self) -> None:
        self.key, self._dead = (), True
        self._lock = threading.Lock()


class Templates:
    """The template of one executor: made for the programs that there are when a process is to be started."""

    def __init__(self, options: StartOptions) -> None:
        self.options = options
        self._programs: list[weakref.ref[Loadable]] = []
        self._current: Template | None = None
        self._lock = threading.RLock()
        #: programs that workers load themselves, and why
        self._refused: dict[int, str] = {}
        self._deaths = 0

    def add(self, program: Loadable) -> None:
        """Processes that are started from now on are going to run this program."""
        with self._lock:
            self._programs = [one for one in self._programs if one() is not None]
            self._programs.append(weakref.ref(program))

    def why_not(self, program: Loadable) -> str:
        """Why workers load the program themselves, as far as that is known; empty if they do not."""
        with self._lock:
            self._judge()
            return self._refused.get(program.token, "")

    def new_process(self, entry: str, name: str) -> Process:
        """Start a process: from a template with the programs, or without one. It is ready later."""
        return Process(entry, name, self.options, self._acquired)

    def _acquired(self) -> Template | None:
        """A template for all programs that are worth one, to be used by one more process."""
        if sys.platform != "linux":
            return None
        with self._lock:
            self._judge()
            programs = [one for reference in self._programs if (one := reference()) is not None]
            wanted = [one for one in programs if one.token not in self._refused and _worth(one)]
            if not wanted:
                return None
            current = self._current
            tokens = {one.token for one in wanted}
            if current is not None and current.tokens >= tokens and not current.dead and servers.join(current):
                return current
            try:
                self._current = Template(wanted, self.options)
            except ConnectionError:  # it has ended at once
                self._refused |= dict.fromkeys(tokens, "the process that was to load it could not be started")
                return None
            servers.add(self._current)
            return self._current

    def _judge(self) -> None:
        """See what has become of the template."""
        template = self._current
        if template is None:
            return
        why = template.why
        if template.dead and not template.loaded and not why:
            self._deaths += 1
            why = "the process that was to load it died twice" if self._deaths >= _MOST_DEATHS else ""
            self._current = None
        if why:
            self._refused |= dict.fromkeys(template.tokens, why)
            self._current = None


def _worth(program: Loadable) -> bool:
    """Whether loading a program takes long enough. What the plain server has imported costs nothing."""
    there = {name.partition(".")[0] for name in servers.PRELOAD} | sys.stdlib_module_names
    needed = program.packages | {name.partition(".")[0] for name in program.later}
    return len(program.data) >= _LARGE_BYTES or bool(needed - there - {"__main__"})
