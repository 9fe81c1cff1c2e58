"""What runs in a new worker process, and in the server that forks workers, before anything else.

An interpreter loads this file by its path, so only the standard library is imported here: a new process holds
its lifeline before it imports anything that may take long, hang or fail. `penstock.executors.startup` is the
other side.

Guarantees in the new process:

* It ends with its parent, also inside a loop that never lets go of the interpreter lock. On Linux the kernel
  sees to that through the lifeline. Elsewhere the server does, and without a server a thread, which must get
  its turn.
* It never imports or runs the user's main module; `__main__` is empty.
* Working directory, `sys.path`, `sys.argv`, environment, standard output and error are those that the parent
  had at the start; standard input is empty.
* Interrupts from the terminal and SIGTERM do not reach it: its parent decides when it ends.
* It holds no descriptor of its siblings, of the server or, when forked, of its parent's other processes.

A *template* is a worker process that becomes a server: it loads what its workers are going to run, once, and
is then forked for each of them. If what it has loaded would not survive a fork, it hands every order on to the
server that it was forked from, and says why.
"""

from __future__ import annotations

import array
import errno
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from types import ModuleType
from typing import Any, NoReturn

#: plain values only, carried by `marshal` through a file: an environment has no upper size
Request = dict[str, Any]

#: what the server tells the parent at the birth of a child: its pid, or minus the reason why there is none
PID = struct.Struct("<q")
#: and at its end: the status that wait4 gave, and the most memory it had, in bytes
END = struct.Struct("<qq")

#: what a template tells the parent when it has loaded its programs: bytes of the reason why workers cannot be
#: forked from it, and then the reason; 0 if they can
VERDICT = struct.Struct("<q")
_MOST_REASON = 2000

#: descriptors of one order to the server: status, request, socket, lifeline, standard output and error. Status
#: first: if the server has no room for all, it can say so.
_ORDER = 6
#: of ru_maxrss, in bytes
RSS_UNIT = 1 if sys.platform == "darwin" else 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: glibc refuses more
_MMAP_THRESHOLD = 32 * 2**20
_TRIM_THRESHOLD = 512 * 2**20


def main(request_fd: int) -> NoReturn:
    """Be what the request says: the server, or one worker."""
    request = read_request(request_fd)
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # so that no other descriptor becomes standard output
        pass
    os.close(fd)
    for fd in request["fds"]:
        os.set_inheritable(fd, False)
    if "preload" in request:
        serve(request, *request["fds"])
    else:
        run(request, *request["fds"][:2])


def read_request(fd: int) -> Request:
    with open(fd, "rb") as file:
        file.seek(0)
        request: Request = marshal.load(file)
    return request


def fork() -> int:
    """Fork. Python warns where there are threads, and as an error that would hide the child from its parent."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# ---------------------------------------------------------------------------------------------- the server


def serve(request: Request, control_fd: int) -> NoReturn:
    """Load what workers need, then fork one per order, and tell of its end. Ends with the parent."""
    code = 1
    try:
        _reset_signals()
        _take_main_away(request)
        control = socket.socket(fileno=control_fd)
        _preload(request, control_fd)
        _Server(control).run()
        code = 0
    finally:
        os._exit(code)


def _preload(request: Request, control_fd: int) -> None:
    sys.path[:] = request["path"]
    gc.disable()
    for name in ("ctypes", *request["preload"]):
        if hung_up(control_fd) & select.POLLHUP:
            return
        # A worker that needs it will say what is wrong with it.
        with suppress(Exception):
            importlib.import_module(name)
    flush()
    gc.collect()
    # What is loaded now is never garbage; looking at it would copy its pages in every worker.
    gc.freeze()


class _Server:
    """The loop: one thread, and no answer over the control socket, so parents need not take turns to ask.

    `own` are descriptors that its children close. With a `relay`, the control socket of another server, that
    one gets all orders.
    """

    def __init__(self, control: socket.socket, own: Sequence[int] = (), relay: socket.socket | None = None) -> None:
        self.control = control
        self.own = own
        self.relay = relay
        self.status: dict[int, int] = {}  # of living children, by pid
        self.lifelines: dict[int, int] = {}  # their pids, by lifeline
        self.woken, self.waker = os.pipe()
        for fd in (self.woken, self.waker):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self.poll = select.poll()
        for fd in (self.woken, control.fileno()):
            self.poll.register(fd, select.POLLIN)

    def run(self) -> None:
        while True:
            ready = dict(self.poll.poll())
            # In this order: a number that `reap` frees may come back as that of a new child's lifeline.
            for fd in ready.keys() & self.lifelines.keys():
                self.poll.unregister(fd)
                os.kill(self.lifelines[fd], signal.SIGKILL)
            if self.woken in ready:
                with suppress(BlockingIOError):
                    os.read(self.woken, 4096)
                self.reap(os.WNOHANG)
            if self.control.fileno() in ready and not self.take_order():
                break
        for pid in self.status:
            os.kill(pid, signal.SIGKILL)
        self.reap(0)

    def take_order(self) -> bool:
        """False if there will be no more."""
        data, fds = received(self.control, _ORDER)
        if len(fds) == _ORDER:
            if self.relay is not None:
                self.hand_on(fds)
            else:
                self.start(*fds)
        elif fds:
            _tell(fds[0], PID.pack(-errno.EMFILE))
            _close(*fds)
        return bool(data)

    def hand_on(self, fds: list[int]) -> None:
        """Have the other server start the process."""
        assert self.relay is not None
        try:
            socket.send_fds(self.relay, [b"+"], fds)
        except OSError as exc:
            _tell(fds[0], PID.pack(-(exc.errno or errno.EAGAIN)))
        _close(*fds)

    def start(self, status: int, request: int, sock: int, lifeline: int, out: int, err: int) -> None:
        try:
            # Whoever asked for it has closed it again: then it need not be born.
            pid = -errno.ECANCELED if hung_up(lifeline) else fork()
        except OSError as exc:
            pid = -(exc.errno or errno.EAGAIN)
        if pid == 0:
            self._become_child(status, request, sock, lifeline, out, err)
        _tell(status, PID.pack(pid))
        _close(request, sock, out, err)
        if pid < 0:
            _close(status, lifeline)
        else:
            self.status[pid] = status
            self.lifelines[lifeline] = pid
            self.poll.register(lifeline, select.POLLIN)

    def _become_child(self, status: int, request: int, sock: int, lifeline: int, out: int, err: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            self.control.close()
            _close(status, self.woken, self.waker, *self.status.values(), *self.lifelines, *self.own)
            os.dup2(out, 1)
            os.dup2(err, 2)
            _close(out, err)
            gc.enable()
            run(read_request(request), sock, lifeline)
        finally:
            os._exit(1)

    def reap(self, flags: int) -> None:
        """Tell of every child that has ended; without WNOHANG, of all."""
        while self.status:
            pid, status, usage = os.wait4(-1, flags)
            if pid == 0:
                return
            fd = self.status.pop(pid, -1)
            if fd == -1:
                continue  # a library's own, started while it was loaded
            _tell(fd, END.pack(status, usage.ru_maxrss * RSS_UNIT))
            lifeline = next(lifeline for lifeline, owner in self.lifelines.items() if owner == pid)
            del self.lifelines[lifeline]
            with suppress(KeyError):
                self.poll.unregister(lifeline)
            _close(fd, lifeline)


def received(control: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """One byte, empty at the end, and the descriptors that came with it."""
    fds = array.array("i")
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(most * fds.itemsize), flags)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)


def _tell(fd: int, message: bytes) -> None:
    with suppress(OSError):  # nobody wants to know
        os.write(fd, message)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _nothing(*_: object) -> None:
    """A signal handler must be there for the wakeup descriptor to be written."""


# ---------------------------------------------------------------------------------------------- one worker


def run(request: Request, sock: int, lifeline: int) -> NoReturn:
    """Set the process up, call the entry function, and end."""
    code = 1
    try:
        _reset_signals()
        _hold(lifeline)
        _take_main_away(request)
        _set_up(request)
        end = socket.socket(fileno=sock)
        end.setblocking(True)
        module, _, function = request["entry"].partition(":")
        entry = attrgetter(function)(importlib.import_module(module))
        if request["template"]:
            _be_template(entry, end, lifeline)
        else:
            entry(end, request["name"])
        code = 0
    except SystemExit as exc:
        code = _code_of(exc)
    except BaseException:
        _print_exception()
    finally:
        _finish(code)


def _be_template(
    load: Callable[[socket.socket, Sequence[Any]], str], control: socket.socket, lifeline: int
) -> None:
    """Load what workers need, say whether they can be forked from here, and serve orders.

    First come the control socket of the server that forked this one, and what to load; then its memory.
    """
    relay_fd, fd = received(control, 2)[1]
    relay = socket.socket(fileno=relay_fd)
    gc.disable()
    why = load(control, read_request(fd)["programs"]).encode()[:_MOST_REASON]
    flush()
    # What is loaded now is never garbage; looking at it would copy its pages in every worker.
    gc.freeze()
    control.sendall(VERDICT.pack(len(why)) + why)
    if why:
        _Server(control, [], relay).run()
    else:
        relay.close()
        _Server(control, [lifeline]).run()


def hung_up(fd: int) -> int:
    """Not 0 if the other side is gone or has said that this is the end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return next((event for _, event in poll.poll(0)), 0)


def _reset_signals() -> None:
    """No interrupts, no handlers that were made elsewhere; ignored signals stay ignored, as after exec."""
    signal.set_wakeup_fd(-1)
    for ours in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ours, signal.SIG_IGN)
    for number in range(1, signal.NSIG):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # The parent blocked them until now, so that none could hit a process that does not ignore them yet.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _hold(lifeline: int) -> None:
    """From here on this process dies when the parent is gone, or shuts the other end of the lifeline.

    The lifeline is this process's own, so what is set on it here concerns no other.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, getattr(fcntl, "F_SETSIG", 10), signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    else:
        import threading

        threading.Thread(target=_watch, args=(lifeline,), name="penstock-lifeline", daemon=True).start()
    if hung_up(lifeline):  # before the kernel knew whom to tell
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(lifeline: int) -> None:
    with suppress(OSError):
        os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _take_main_away(request: Request) -> None:
    global _old_main
    _old_main = sys.modules.get("__main__")  # a frame may still run in it
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv[:] = request["argv"]


_old_main: ModuleType | None = None


def _set_up(request: Request) -> None:
    if request["mallopt"]:
        _keep_freed_memory()
    environ = request["environ"]
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if request["cwd"] is not None:
        os.chdir(request["cwd"])
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    # The module random sees to itself after a fork.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if request["forked"]:
        _forget_parent()


def _keep_freed_memory() -> None:
    """Have glibc keep large buffers for the next sample: fresh memory costs a page fault for every 4 KB."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # Together or not at all: without the second, freed memory at the top would go back at once.
        if mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


def _forget_parent() -> None:
    """What a fork of the user's own process brought along, and a fork of the server does not."""
    import atexit

    atexit._clear()  # they would remove the parent's files
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def _code_of(exc: SystemExit) -> int:
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    with suppress(Exception):
        print(exc.code, file=sys.stderr)
    return 1


def _print_exception() -> None:
    import traceback

    with suppress(Exception):
        traceback.print_exc()


def _finish(code: int) -> NoReturn:
    import atexit

    try:
        atexit._run_exitfuncs()
    except BaseException:
        _print_exception()
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def flush() -> None:
    """Write out what `print` has kept back."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
