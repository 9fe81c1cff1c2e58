"""Scripts for tests, forked from one interpreter that has imported numpy and penstock.

A script in a new interpreter takes 0.4 s of CPU for its imports, and its fork server as much again. Here both are
forked from the nursery, which has them done. Relied on:

* A script runs as `python -W error -c code` does: `__main__`, standard streams, environment, working directory
  and session are its own, and it ends as an interpreter ends, with what it prints and its exit code.
* The first fork server of a script is a child of the script, as every other, and has nothing that the script
  made. Others are started as usual.
* The nursery ends with the process that started it.

Not for what start-up itself is about: what is imported when, or which variables libraries read. It needs Linux;
elsewhere tests that run a script are skipped.
"""

from __future__ import annotations

import atexit
import gc
import linecache
import os
import pickle
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]

_POSSIBLE = sys.platform == "linux"

_BOOT = "import sys; from tests import nursery; nursery.serve(int(sys.argv[1]))"
#: of one order: the code, its arguments and the environment
_MOST_BYTES = 500_000
_MOST_FDS = 20
#: how a script ended, as `waitpid` tells it; before that, its pid
_WORD = struct.Struct("<q")


# ---------------------------------------------------------------------- the side of the test


class Forked:
    """A running script. What it writes to standard error goes to a file, so that nobody need read it meanwhile.

    In a `terminal`, the descriptor of one, all its streams are that. Descriptors that are given as `fds` have other
    numbers there, which are its last arguments. With `server`, a fork server waits to be used; it is one process
    and one descriptor of the script.
    """

    def __init__(
        self,
        code: str,
        *args: Any,
        server: bool = True,
        cwd: Path = ROOT,
        env: Mapping[str, str] = os.environ,
        terminal: int | None = None,
        fds: Sequence[int] = (),
    ) -> None:
        self.returncode: int | None = None
        self._said = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        theirs, self._in = os.pipe()
        self._out, out = os.pipe()
        self._word, word = os.pipe()
        streams = [theirs, out, self._errors.fileno()] if terminal is None else [terminal] * 3
        order = pickle.dumps((code, [str(arg) for arg in args], server, str(cwd), dict(env)))
        try:
            socket.send_fds(_control(), [order], [word, *streams, *fds])
        finally:
            for fd in (theirs, out, word):
                os.close(fd)
        (self.pid,) = _WORD.unpack(os.read(self._word, _WORD.size))

    def write(self, text: str) -> None:
        """Write to its standard input."""
        os.write(self._in, text.encode())

    def end_input(self) -> None:
        """Close its standard input."""
        if self._in >= 0:
            os.close(self._in)
            self._in = -1

    def line(self, timeout_s: float) -> str:
        """The next line that it prints; empty at the end of its output."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._said and (more := self._read(deadline)):
            self._said += more
        line, end, self._said = self._said.partition(b"\n")
        return (line + end).decode()

    def ended(self, timeout_s: float) -> tuple[int, str, str]:
        """Its exit code, the output that no `line` has taken, and what it wrote to standard error."""
        deadline = time.monotonic() + timeout_s
        while more := self._read(deadline):
            self._said += more
        code = self.wait(deadline - time.monotonic())
        self._errors.seek(0)
        return code, self._said.decode(), self._errors.read().decode()

    def wait(self, timeout_s: float) -> int:
        if self.returncode is None:
            self._await(self._word, timeout_s)
            word = os.read(self._word, _WORD.size)
            assert word, "the nursery has died"
            self.returncode = os.waitstatus_to_exitcode(*_WORD.unpack(word))
        return self.returncode

    def kill(self) -> None:
        """End it, and wait for that; it may have ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(60)

    def close(self) -> None:
        self.end_input()
        for fd in (self._out, self._word):
            os.close(fd)
        self._errors.close()

    def _read(self, deadline: float) -> bytes:
        self._await(self._out, deadline - time.monotonic())
        return os.read(self._out, 1 << 16)

    def _await(self, fd: int, timeout_s: float) -> None:
        if not select.select([fd], [], [], max(timeout_s, 0))[0]:
            raise subprocess.TimeoutExpired(f"script {self.pid}", timeout_s)


@cache
def _control() -> socket.socket:
    """Where orders are sent. The nursery ends when this is closed, at the latest with this process."""
    if not _POSSIBLE:
        import pytest  # here, since it need not be in the nursery

        pytest.skip("scripts of tests are forked, and their ends are seen, as on Linux")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    command = [sys.executable, "-W", "error", "-c", _BOOT, str(theirs.fileno())]
    # A session of its own, so that Ctrl-C in a terminal does not reach it.
    nursery = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
    nursery.returncode = 0  # it ends by itself: nobody waits
    theirs.close()
    return ours


def run(code: str, *args: Any, timeout_s: float = 150, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, without input. The options are those of `Forked`."""
    running = Forked(code, *args, **options)
    running.end_input()
    try:
        return subprocess.CompletedProcess(code, *running.ended(timeout_s))
    finally:
        running.kill()
        running.close()


def start() -> None:
    """Have the nursery begin to import, or do nothing if it has begun."""
    if _POSSIBLE:
        _control()


def stop() -> None:
    """End the nursery if there is one."""
    if _control.cache_info().currsize:
        _control().close()
        _control.cache_clear()


# ---------------------------------------------------------------------- the nursery


def serve(control_fd: int) -> None:
    """Fork a script per order, and tell of its end."""
    from penstock.executors import newborn

    control = socket.socket(fileno=control_fd)
    _import_all()
    living: dict[int, tuple[int, int]] = {}  # pids and where their ends are told, by descriptors that show them
    while True:
        for fd in select.select([control_fd, *living], [], [])[0]:
            if fd != control_fd:
                pid, word = living.pop(fd)
                _tell(word, os.waitpid(pid, 0)[1])
                os.close(fd)
                os.close(word)
                continue
            order, fds, _, _ = socket.recv_fds(control, _MOST_BYTES, _MOST_FDS)
            if not order:
                control.close()
                return
            word, *theirs = fds
            if (pid := newborn.fork()) == 0:
                for other in (control_fd, word, *living, *(one for _, one in living.values())):
                    os.close(other)
                control.detach()
                _run(theirs, *pickle.loads(order))
                return
            _tell(word, pid)
            living[os.pidfd_open(pid)] = pid, word
            for fd in theirs:
                os.close(fd)


def _import_all() -> None:
    import penstock

    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.startswith(("penstock.cli", "penstock.testing", "penstock.__main__")):
            import_module(module.name)
    for name in ("asyncio", "concurrent.futures", "ctypes", "numpy.random", "tests.runtime.process_helpers"):
        import_module(name)
    gc.collect()
    gc.freeze()


def _tell(fd: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(fd, _WORD.pack(number))


def _run(
    fds: Sequence[int], code: str, args: Sequence[str], server: bool, cwd: str, env: Mapping[str, str]
) -> None:
    """Be the script. What it raises ends the interpreter, as it would at the top."""
    import numpy as np

    os.setsid()
    for number, stream in enumerate(fds[:3]):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    np.random.seed()
    _open_streams(env.get("PYTHONIOENCODING"))
    sys.argv = ["-c", *args, *map(str, fds[3:])]
    sys.modules["__main__"] = main = ModuleType("__main__")
    sys.excepthook = _hook
    if server:
        _lend_server()
    _execute(code, main.__dict__)


def _open_streams(encoding: str | None) -> None:
    """Anew, since those of the nursery remember what it had there."""
    sys.stdin = sys.__stdin__ = _stream(0, "r", encoding=encoding)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", encoding=encoding, buffering=1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(  # type: ignore[misc]
        2, "w", encoding=encoding, buffering=1, errors="backslashreplace"
    )


def _stream(fd: int, mode: str, **options: Any) -> Any:
    return open(fd, mode, closefd=False, **options)


def _execute(code: str, names: dict[str, Any]) -> None:
    if sys.version_info >= (3, 13):  # tracebacks show the lines of what `python -c` runs
        linecache.cache["<string>"] = len(code), None, code.splitlines(keepends=True), "<string>"
    exec(compile(code, "<string>", "exec"), names)


def _hook(kind: type[BaseException], exc: BaseException, frames: Any) -> None:
    """Print an exception without the frames of this file."""
    while frames is not None and frames.tb_frame.f_code is not _execute.__code__:
        frames = frames.tb_next
    sys.__excepthook__(kind, exc.with_traceback(frames and frames.tb_next), frames and frames.tb_next)


# ---------------------------------------------------------------------- its fork server


def _lend_server() -> None:
    """Fork what becomes the first fork server of this process, before the script does anything."""
    from penstock.executors import newborn, servers

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with servers.interrupts_blocked():
        if (seed := newborn.fork()) == 0:
            ours.close()
            _be_server(theirs)
    theirs.close()
    launch = servers.launch

    def lend(request: dict[str, Any], fds: Sequence[int], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        if "preload" not in request or ours.fileno() < 0:
            return launch(request, fds, environ)
        with servers.request_file({**request, "fds": list(fds)}) as file, ours:
            socket.send_fds(ours, [pickle.dumps((file, list(fds), dict(environ)))], [file, *fds])
        return _adopted(seed)

    def end() -> None:
        if ours.fileno() >= 0:
            ours.close()
            os.waitpid(seed, 0)

    servers.launch = lend
    os.register_at_fork(after_in_child=ours.close)
    atexit.register(end)


def _adopted(pid: int) -> subprocess.Popen[bytes]:
    """A child of this process as the Popen that would have started it."""
    popen: subprocess.Popen[bytes] = subprocess.Popen.__new__(subprocess.Popen)
    vars(popen).update(dict.fromkeys(("stdin", "stdout", "stderr", "returncode")), args=(), pid=pid)
    vars(popen).update(_child_created=True, _waitpid_lock=threading.Lock(), _sigint_wait_secs=0.0)
    return popen


def _be_server(control: socket.socket) -> NoReturn:
    from penstock.executors import newborn

    try:
        order, received, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not order:
            os._exit(0)
        file, fds, environ = pickle.loads(order)
        os.environ.clear()
        os.environ.update(environ)
        # To the numbers that they have in the parent, past those that they have here.
        above = [os.dup2(fd, 900 + number) for number, fd in enumerate(received)]
        for fd in (*received, control.detach()):
            os.close(fd)
        for fd, number in zip(above, [file, *fds], strict=True):
            os.dup2(fd, number)
            os.close(fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        newborn.main(file)
    finally:
        os._exit(1)
