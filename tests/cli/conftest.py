"""The command line as its users meet it: a child process behind a pipe, or behind a terminal."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import nursery

from penstock.cli.main import main

TIMEOUT_S = 150

#: as `python -m penstock.cli.main` does
_AS_MODULE = "import runpy; runpy.run_module('penstock.cli.main', run_name='__main__', alter_sys=True)"
# A child must make the terminal its own before Ctrl-C typed there can reach it.
_IN_A_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {_AS_MODULE}"

Cli = Callable[..., subprocess.CompletedProcess[str]]


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would change how output looks, in UTF-8."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**kept, "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color", **changes}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run one command line in a folder of its own."""

    def run(*args: str, cwd: Path = tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
        return nursery.run(_AS_MODULE, *args, cwd=cwd, env=environment(**env), timeout_s=TIMEOUT_S)

    return run


@pytest.fixture
def cli_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The same within this interpreter, for many command lines: one of its own takes half a second to start."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        before = set(sys.modules)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", list(sys.path))
            try:
                code = main(args)
            except SystemExit as exc:  # from argparse
                code = int(exc.code or 0)
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return run


class Terminal:
    """A command in a terminal of 80 columns; what it writes is read as it comes."""

    def __init__(self, args: tuple[str, ...], cwd: Path, env: dict[str, str]) -> None:
        self.text = ""
        self._deadline = time.monotonic() + TIMEOUT_S
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        try:
            self.process = nursery.Forked(_IN_A_TERMINAL, *args, cwd=cwd, env=env, terminal=theirs)
        finally:
            os.close(theirs)

    def read_until(self, marker: str) -> str:
        """Everything so far, as soon as `marker` is in it."""
        while marker not in self.text:
            if not self._read():
                pytest.fail(f"the command ended before it wrote {marker!r}:\n{self.text}")
        return self.text

    def finish(self) -> tuple[int, str]:
        """The exit code and everything it wrote."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT_S), self.text

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def close(self) -> None:
        self.process.kill()
        self.process.close()
        os.close(self._ours)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, self._deadline - time.monotonic()))
        if not ready:
            pytest.fail(f"nothing more after {TIMEOUT_S} s:\n{self.text}")
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other side has closed the terminal
            return False
        self.text += data.decode("utf-8", errors="replace")
        return bool(data)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Open a command in a terminal; it is closed with the test."""
    opened: list[Terminal] = []

    def open_one(*args: str, cwd: Path = tmp_path, **env: str) -> Terminal:
        opened.append(Terminal(args, cwd, environment(**env)))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
