"""Fork servers, as the process that uses them sees them: small processes with numpy loaded, forked per worker.

A fork of the user's own process would copy its threads' locks and its CUDA context; a new interpreter takes
a quarter of a second for its imports. A fork of a server has neither problem.

Guarantees:

* There is one server per process and per set of variables that libraries read while they are loaded, since
  what is loaded before the fork has read them by then.
* A server lives as long as a process it forked is in use, or as it is kept warm; then it is ended and waited
  for. It ends with this process, however this process ends.
* A server that was killed is replaced at the next start.
* A forked child of this process has no part in its servers, and starts its own.

Templates (`penstock.executors.templates`) are servers too, and end by the same rules.
"""

from __future__ import annotations

import atexit
import marshal
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TypeAlias

from penstock import system
from penstock.errors import PenstockError
from penstock.executors import newborn
from penstock.interrupts import uninterrupted

#: what a server loads; a module that there is not is left out
PRELOAD = ("numpy", "numpy.random", "msgspec", "cloudpickle", "penstock.remote.serving")

Key: TypeAlias = tuple[object, ...]

#: held while descriptors of the parent's side are made, so that no fork falls between making and noting them
starting = threading.Lock()

#: how long a server may take to end before it is killed
_END_S = 2.0
#: how long a fork waits for a start in another thread
_FORK_WAIT_S = 1.0

# By path and without the package, whose imports take long.
_BOOT = (
    "import sys, importlib.util as u; "
    "s = u.spec_from_file_location('penstock_newborn', sys.argv[1]); "
    "m = sys.modules[s.name] = u.module_from_spec(s); s.loader.exec_module(m); m.main(int(sys.argv[2]))"
)


class Server:
    """One server process, and who uses it."""

    def __init__(self, key: Key, environ: Mapping[str, str]) -> None:
        self.key = key
        self.users = 0
        #: where orders are sent; closed once the server has been
        self.control, theirs = socket.socketpair()
        try:
            self.control.setblocking(True)
            request = {"preload": PRELOAD, "path": [str(p) for p in sys.path], "argv": sys.argv[:1]}
            self._popen = launch(request, [theirs.fileno()], environ)
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()

    @property
    def loading(self) -> bool:
        """It has begun to load programs, which may take any time, and orders wait until it has."""
        return False

    def order(self, fds: Sequence[int]) -> None:
        """Hand over what a new process gets. One byte and its descriptors arrive together or not at all."""
        socket.send_fds(self.control, [b"+"], fds)

    def close(self) -> None:
        """End it, with all processes it has left, and wait until it has gone."""
        with suppress(OSError):  # also where a library's fork holds a copy of the socket
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(_END_S)

    def failed(self) -> bool:
        """Whether it is known to have ended by a fault of its own, and not because somebody killed it."""
        return self._popen.poll() not in (None, 0, -signal.SIGKILL)

    def forget(self) -> None:
        """In a forked child: it belongs to the parent."""
        self.key, self._popen.returncode = (), 0  # so that nobody waits for it here
        self.control.close()


_servers: dict[Key, Server] = {}
#: by those who no longer use them; a queue, since the garbage collector may be one of them
_released: SimpleQueue[Server] = SimpleQueue()


@uninterrupted()
def acquire(key: Key, environ: Mapping[str, str]) -> Server:
    """The server for `key`, to be given back with `release`."""
    try:
        with starting:
            server = _servers.get(key)
            if server is None:
                server = _servers[key] = Server(key, environ)
            server.users += 1
            return server
    finally:
        _end_unused()


def add(server: Server) -> None:
    """Count a server that the caller has started, and that the caller uses, among the others."""
    with starting:
        server.users = 1
        _servers[server.key] = server


def join(server: Server) -> bool:
    """Use a server that is there already; False if it is not any more."""
    with starting:
        if _servers.get(server.key) is not server:
            return False
        server.users += 1
        return True


def discard(server: Server) -> None:
    """A server has died: nobody shall use it any more."""
    with starting:
        if _servers.get(server.key) is server:
            del _servers[server.key]
    server.close()  # others may still count on it, but it is of no use to them


@uninterrupted()
def release(server: Server) -> None:
    """Give a server back. Waits until it has ended if nobody else uses it."""
    _released.put(server)
    _end_unused()


def _end_unused() -> None:
    """End servers that nobody uses. Whoever has the lock comes here after letting go of it."""
    idle: list[Server] = []
    while not _released.empty() and starting.acquire(blocking=False):
        try:
            while not _released.empty():
                server = _released.get_nowait()
                server.users -= 1
                if server.users == 0 and _servers.get(server.key) is server:
                    idle.append(_servers.pop(server.key))
        finally:
            starting.release()
    for server in idle:
        server.close()


def close_all() -> None:
    """At the end of the interpreter."""
    servers = list(_servers.values())
    _servers.clear()
    for server in servers:
        server.close()


def launch(request: newborn.Request, fds: Sequence[int], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs `newborn.main` with the request. `fds` keep their numbers."""
    if not sys.executable:
        raise PenstockError("sys.executable is empty; set it to the Python that worker processes shall run")
    if getattr(sys, "frozen", False):  # it would run the whole program again
        raise PenstockError("in a frozen program there is no Python to run; start processes by method 'fork'")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with request_file({**request, "fds": list(fds)}) as file, interrupts_blocked():
        # -P: what lies in the working directory must not stand in for the standard library.
        command = [sys.executable, *flags, "-P", "-c", _BOOT, newborn.__file__, str(file)]
        return subprocess.Popen(command, pass_fds=[file, *fds], env=environ, stdin=subprocess.DEVNULL)


@contextmanager
def request_file(request: newborn.Request) -> Iterator[int]:
    """A file without a name that holds the request; its descriptor."""
    fd = system.memory_file("penstock-request")
    with tempfile.TemporaryFile() if fd is None else open(fd, "w+b") as file:
        marshal.dump(request, file)
        file.flush()
        yield file.fileno()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """For the birth of a process, which unblocks them once it has its own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_held_for_fork = threading.local()


def _before_fork() -> None:
    # Not for ever: a signal handler may fork in the middle of a start in its own thread.
    _held_for_fork.yes = starting.acquire(timeout=_FORK_WAIT_S)


def _after_fork_in_parent() -> None:
    if _held_for_fork.yes:
        starting.release()


def _after_fork_in_child() -> None:
    global starting, _released
    starting = threading.Lock()
    _released = SimpleQueue()
    for server in _servers.values():
        server.forget()
    _servers.clear()


system.at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(close_all)
