"""Start worker processes quickly, and have them end when they should.

Guarantees:

* The user's main module is not imported: scripts without a guard, notebooks and standard input are fine.
* A process dies when this one dies, however, and when its `Process` is closed or no longer held.
* `kill` hits this process and no other, at any time: before its birth is known and long after its end.
* At most 3 descriptors per process are held here, and none of them reaches another program. When all is
  closed, no process is left.
* A `Process` belongs to the process that made it. In a forked child it holds nothing and does nothing.

A process starts by one of three methods:

* "forkserver", the default on Linux: forked from a server that has the heavy imports done, see `servers`.
* "spawn": a new interpreter, which imports everything itself. The default on macOS, whose own libraries may
  crash in a forked process.
* "fork": from this very process. Fast, and as safe as its threads, locks and libraries allow.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock import system
from penstock.errors import PenstockError, PlanError, WorkerDied
from penstock.executors import newborn, servers
from penstock.executors.ending import UNKNOWN, Exit, OwnChild, ServedChild, has_pidfd, own_peak_bytes, readable
from penstock.interrupts import uninterrupted

METHODS = ("forkserver", "spawn", "fork")

#: one thread per worker process: there are as many processes as the user wants CPUs to be busy
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
#: servers that are tried one after the other, should they die
_ORDERS = 4
#: how long the birth of a process may take before it counts as failed
_BIRTH_S = 60.0
#: how long a killed process may take to give its memory back before `close` goes on without it
_END_S = 1.0


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a process is started.

    `env` is added to the environment of this process and wins over everything; libraries see it while they
    are loaded, except with "fork". Without it a process uses one thread in BLAS, OpenMP and the like, unless
    this process's environment says otherwise, and sees no GPU unless `gpus`: then those that this process may see.
    `mallopt` has glibc keep large freed buffers.
    """

    method: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    mallopt: bool = True
    gpus: bool = False

    def chosen(self) -> str:
        """The method, or the default of this system."""
        if why := system.why_no_processes():
            raise PlanError(why)
        method = self.method or ("forkserver" if hasattr(os, "fork") and sys.platform != "darwin" else "spawn")
        if method not in METHODS:
            raise PenstockError(f"there is no start method {method!r}; there are: {', '.join(METHODS)}")
        return method

    def environ(self) -> dict[str, str]:
        """The environment of a process that starts now."""
        environ = dict.fromkeys(_THREADS, "1") | dict(os.environ)
        if not self.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ""
        return environ | dict(self.env)

    def server_key(self, environ: dict[str, str]) -> servers.Key:
        """Processes may share a server if this is the same."""
        return (sys.executable, self.env, *(environ[name] for name in _THREADS))


class Process:
    """One child process, as its parent sees it. May be used by several threads.

    It calls `entry`, written "module:function", with its end of the `socket` and its name, and ends when
    that returns. This returns before the process is up.

    Where a server forks it, `acquire` may say which: it gives one that is acquired, or None for the one of these
    options. With `is_template` the process becomes a template.
    """

    @uninterrupted()
    def __init__(
        self,
        entry: str,
        name: str,
        options: StartOptions = StartOptions(),  # noqa: B008
        acquire: Callable[[], servers.Server | None] = lambda: None,
        is_template: bool = False,
    ) -> None:
        method, environ = options.chosen(), options.environ()
        self.name = name
        self._lock = threading.RLock()  # of the garbage collector and signal handlers, too; never held for long
        self._closed = self._elsewhere = False
        #: it was killed or hung up on: if it is not born yet, nobody waits for that
        self._unwanted = False
        #: a lock for each who waits on a descriptor of this process, which it has while it waits
        self._waiting: set[threading.Lock] = set()
        self._end: ServedChild | OwnChild | None = None
        #: what it is forked from; None if it was started otherwise, or is closed
        self.server: servers.Server | None = None
        #: where there is no pidfd: a pipe whose other end the process holds open, so that its end shows here
        self._tie: int | None = None
        #: the descriptors of the process itself, open here until it has them
        self._theirs: tuple[int, ...] = ()
        #: the process is killed when this is shut down, or when this process ends; see `newborn`
        self._lifeline: socket.socket
        #: the parent's end: a blocking stream
        self.socket: socket.socket
        try:
            with servers.starting:
                _living[id(self)] = self
                self._make_descriptors(method)
            request = self._request(entry, options, environ)
            request["template"] = is_template
            if method == "forkserver":
                self._order(request, lambda: acquire() or servers.acquire(options.server_key(environ), environ))
            else:
                self._start_own(method, request, environ)
        except BaseException as exc:
            self.close()
            if isinstance(exc, OSError):
                raise WorkerDied(f"the process {name} could not be started: {_why(exc)}") from exc
            raise
        finally:
            self._close_theirs()

    # -------------------------------------------------------------------------------------------- start

    def _make_descriptors(self, method: str) -> None:
        self.socket, sock = socket.socketpair()
        self._theirs = (sock.detach(),)
        self.socket.setblocking(True)
        self._lifeline, lifeline = socket.socketpair()
        self._theirs += (lifeline.detach(),)
        if method == "forkserver":
            mine, status = os.pipe()
            self._theirs += (status,)
            self._end = ServedChild(mine)
        elif not has_pidfd():
            self._tie, held = os.pipe()
            self._theirs += (held,)

    def _request(self, entry: str, options: StartOptions, environ: dict[str, str]) -> newborn.Request:
        try:
            cwd = os.getcwd()
        except FileNotFoundError:  # removed
            cwd = None
        return {
            "entry": entry,
            "name": self.name,
            "argv": [str(arg) for arg in sys.argv],
            "path": [str(path) for path in sys.path],
            "cwd": cwd,
            "environ": environ,
            "mallopt": options.mallopt,
            "forked": False,
        }

    def _order(self, request: newborn.Request, acquire: Callable[[], servers.Server]) -> None:
        sock, lifeline, status = self._theirs
        with servers.request_file(request) as file, _standard_streams() as (out, err):
            fds = (status, file, sock, lifeline, out, err)
            for left in reversed(range(_ORDERS)):
                self.server = server = acquire()
                try:
                    server.order(fds)
                    return
                except ConnectionError:  # it has died
                    self.server = None
                    servers.discard(server)
                    servers.release(server)
                    if not left:
                        raise

    def _start_own(self, method: str, request: newborn.Request, environ: dict[str, str]) -> None:
        if method == "spawn":
            launched, inherited_peak = servers.launch(request, self._theirs, environ), own_peak_bytes()
            launched.returncode = 0  # `OwnChild` waits for it; Popen would, too
            pid = launched.pid
        else:
            pid, inherited_peak = self._fork({**request, "forked": True}), 0
        try:
            self._end = OwnChild(pid, self._tie, inherited_peak)
        except OSError:  # no descriptor is left for it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _fork(self, request: newborn.Request) -> int:
        newborn.flush()
        theirs, self._theirs = self._theirs, ()  # not to be closed in the child that is about to be
        try:
            with servers.interrupts_blocked():
                if (pid := newborn.fork()) == 0:
                    newborn.run(request, *theirs[:2])
        finally:
            self._theirs = theirs
        return pid

    def _close_theirs(self) -> None:
        theirs, self._theirs = self._theirs, ()
        for fd in theirs:
            os.close(fd)

    # ---------------------------------------------------------------------------------------------- life

    @property
    def pid(self) -> int:
        """Its number; waits for its birth. WorkerDied if there was none."""
        end = self._await_birth()
        if end.pid is None:
            why = (
                system.reason(end.refused) if end.refused else "what should have forked it was killed, or is stuck"
            )
            raise WorkerDied(f"the process {self.name} could not be started: {why}")
        return end.pid

    def ended_fileno(self) -> int:
        """A descriptor that is readable as soon as the process has ended, and not before; -1 after `close`.

        Waits for its birth, which shows on the same descriptor.
        """
        return self._await_birth().fd

    def exit(self, timeout_s: float | None) -> Exit | None:
        """How the process ended; None if it has not within `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (end := self._look()).exit is None and not self._closed:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            if end.pid is None and self._loading and self._unwanted:
                return UNKNOWN  # its template will get to it, and not fork
            if self._readable(end, left_s) and self._tie is not None:
                time.sleep(0.0005)  # it has let go of its descriptors, but not ended yet
        return end.exit

    def kill(self) -> None:
        """End the process at once. Does nothing if it has ended; if it is not born yet, it will not be."""
        with self._lock:
            if self._closed or self._elsewhere:
                return
            # Rather than closed: a library's fork may hold a copy.
            self._unwanted = True
            with suppress(OSError):
                self._lifeline.shutdown(socket.SHUT_RDWR)
            if self._end is not None:
                self._end.kill()

    def hang_up(self) -> None:
        """Shut the socket down: the process reads the end, and threads stop waiting for its birth."""
        self._unwanted = True
        with suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_RDWR)

    @uninterrupted()
    def close(self) -> None:
        """Kill the process if it lives, wait until it is gone, let go of all descriptors. May be called again."""
        if self._elsewhere:
            return
        if self._closed:
            with self._lock:
                self._close_mine()  # whoever should have done it may have been interrupted
            return
        if hasattr(self, "_lifeline"):
            self.kill()
        if self._end is not None:
            self.exit(_END_S)
        self._let_go()

    def _look(self) -> ServedChild | OwnChild:
        with self._lock:
            if self._elsewhere or self._end is None:
                raise PenstockError(f"the process {self.name} belongs to another process, which forked this one")
            if not self._closed and self._end.exit is None:
                self._end.look()
                if self._end.orphaned:
                    self.kill()
                    if self.server is not None and not self.server.failed():
                        # Whoever killed the server has killed this one, too.
                        self._end.exit = Exit(None, signal.SIGKILL, 0)
            return self._end

    def _await_birth(self) -> ServedChild | OwnChild:
        """Wait until it is born, or until nobody wants it any more."""
        deadline = time.monotonic() + _BIRTH_S
        wakers = [self.socket, self._lifeline]
        while (end := self._look()).pid is None and end.exit is None and not self._closed and not self._unwanted:
            if self._loading:
                deadline = time.monotonic() + _BIRTH_S
            with self.keeping_open():
                others = [waker.fileno() for waker in wakers]
                seen = readable(end.fd, deadline - time.monotonic(), others)
            if not seen and not self._loading:
                break
            if any(fd in seen for fd in others):
                wakers = []  # shut down here, or by its end, of which there will be word
        return end

    @property
    def _loading(self) -> bool:
        """It waits for its template."""
        server = self.server
        return server is not None and server.loading

    def _readable(self, end: ServedChild | OwnChild, timeout_s: float | None) -> bool:
        with self.keeping_open():
            return bool(readable(end.fd, timeout_s))

    @contextmanager
    def keeping_open(self) -> Iterator[None]:
        """Keep the descriptors open, for whoever waits on one that another thread may `close` meanwhile.

        The next file to be opened would get its number, and the wait be for that.
        """
        me = threading.Lock()
        try:
            with self._lock:
                self._waiting.add(me)
            with me:  # given back even if Ctrl-C ends the rest of this early
                yield
        finally:
            with self._lock:
                self._waiting.discard(me)
                if self._closed:
                    self._close_mine()

    def _let_go(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._end is not None and self._end.exit is None:
                self._end.exit = UNKNOWN
            self._close_mine()
            server, self.server = self.server, None
        if server is not None:
            servers.release(server)

    def _close_mine(self) -> None:
        if any(one.locked() for one in self._waiting):
            return  # the last of them does it
        for name in ("socket", "_lifeline"):
            if hasattr(self, name):
                getattr(self, name).close()
        if self._end is not None:
            self._end.close()
        elif self._tie is not None:
            tie, self._tie = self._tie, None
            os.close(tie)

    def _after_fork_in_child(self) -> None:
        self._elsewhere = True
        self._lock = threading.RLock()
        self._waiting.clear()
        self.server = None
        self._close_theirs()
        self._close_mine()

    def __del__(self) -> None:
        if hasattr(self, "_theirs"):  # it was made
            self._waiting.clear()  # whoever waits has a reference
            self.close()

    def __repr__(self) -> str:
        pid = None if self._end is None else self._end.pid
        return f"<Process {self.name}, pid {pid or 'not known yet'}>"


@contextmanager
def keep_warm(options: StartOptions = StartOptions()) -> Iterator[None]:  # noqa: B008
    """Start the server for such processes now and keep it while the context lasts, also between processes.

    >>> with keep_warm():
    ...     pass                  # every start in here takes milliseconds
    """
    environ = options.environ()
    if options.chosen() != "forkserver":
        yield
        return
    server = servers.acquire(options.server_key(environ), environ)
    try:
        yield
    finally:
        servers.release(server)


def _why(exc: OSError) -> str:
    return str(exc) if exc.errno is None else system.reason(exc.errno)


@contextmanager
def _standard_streams() -> Iterator[tuple[int, int]]:
    """Descriptors for a new process's output and error; what is closed here goes nowhere there."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        yield _open_or(1, null), _open_or(2, null)
    finally:
        os.close(null)


def _open_or(fd: int, other: int) -> int:
    try:
        os.fstat(fd)
    except OSError:
        return other
    return fd


_living: weakref.WeakValueDictionary[int, Process] = weakref.WeakValueDictionary()


def _all_living() -> list[Process]:
    return [process for reference in _living.valuerefs() if (process := reference()) is not None]


def _end_all() -> None:
    """At the end of the interpreter: otherwise sockets would warn that nobody closed them."""
    living = _all_living()
    for process in living:
        process.kill()
    for process in living:
        process.close()


def _after_fork_in_child() -> None:
    for process in _all_living():
        process._after_fork_in_child()
    _living.clear()


system.at_fork(after_in_child=_after_fork_in_child)
atexit.register(_end_all)
