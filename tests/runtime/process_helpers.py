"""What tests with worker processes need: their pids, a seeded killer, children of a session of their own."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: an upper bound for anything that is expected at once: generous, since the machine may be slow and busy
SOON_S = 60.0


# ---------------------------------------------------------------------- waiting


def await_true(fact: Callable[[], Any], what: str, timeout_s: float = SOON_S) -> Any:
    """Wait for what must become true, and say so if it does not."""
    deadline = time.monotonic() + timeout_s
    while not (found := fact()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.001)
    return found


def await_text(path: Path, timeout_s: float = SOON_S) -> str:
    """What a worker has written to a file."""
    return str(await_true(lambda: path.exists() and path.read_text(), f"word in {path.name}", timeout_s))


def write_whole(path: str | Path, text: str) -> None:
    """Write a file that nobody sees half written."""
    part = f"{path}.{os.getpid()}"
    Path(part).write_text(text)
    os.replace(part, path)


# ---------------------------------------------------------------------- in a worker

# Workers import this file: it must stay cheap to import.


def first_time(path: str | Path) -> bool:
    """True for the first of all processes that come here with this path."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def nth_time(folder: str | Path) -> int:
    """How many have come here before, in all processes."""
    return next(number for number in range(1_000_000) if first_time(Path(folder) / f"{number}.visit"))


def spend(seconds: float) -> None:
    """Work for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def meet(folder: str | Path) -> None:
    """The first time: say who is here, and wait to be killed or let go by `release`."""
    if first_time(Path(folder) / "met"):
        write_whole(Path(folder) / "here", str(os.getpid()))
        await_true((Path(folder) / "go").exists, "leave to go on")


def met(folder: Path) -> int:
    """The pid of the worker that waits in `meet`."""
    return int(await_text(folder / "here"))


def release(folder: Path) -> None:
    (folder / "go").touch()


# ---------------------------------------------------------------------- processes


def children(pid: int | None = None) -> list[int]:
    """The children of a process that are not dead."""
    pid = pid or os.getpid()
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # the thread has ended, the others have not
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return [child for child in found if state(child) not in ("Z", "X", "")]


def state(pid: int) -> str:
    """R, S, T and so on; nothing if there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


#: worker processes that tests of layouts share: no test may kill them
IN_POOL: set[int] = set()


def workers() -> list[int]:
    """The processes that fork servers and templates of this process have forked, but those of `IN_POOL`."""
    known = {*templates(), *IN_POOL}
    forked = [pid for server in children() for pid in children(server)]
    return [pid for pid in forked if pid not in known] + [pid for one in known for pid in children(one)]


def templates() -> list[int]:
    """The templates of this process."""
    from penstock.executors import servers
    from penstock.executors.templates import Template

    found = [one for one in list(servers._servers.values()) if isinstance(one, Template) and not one.dead]
    return [one.process.pid for one in found]


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


class Killer:
    """Kills workers at random moments of a stream, the same for the same seed, none in its last fifth."""

    def __init__(self, seed: int, kills: int, length: int) -> None:
        self.random = random.Random(seed)
        self.moments = set(self.random.sample(range(length * 4 // 5), kills))
        self.kills = 0

    def through(self, stream: Any) -> Iterator[Any]:
        """The stream; somebody is killed between one sample and the next."""
        due = 0
        for number, sample in enumerate(stream):
            yield sample
            due += number in self.moments
            if due and (there := workers()):
                kill(self.random.choice(there))
                self.kills += 1
                due -= 1


# ---------------------------------------------------------------------- children with a session of their own


class Script:
    """A script in a process and a session of its own, so that all it leaves behind can be found."""

    def __init__(self, code: str, *args: Any, server: bool = True) -> None:
        import textwrap  # here, since workers import this file

        from tests.nursery import Forked

        self.process = Forked(
            textwrap.dedent(code), *args, server=server, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
        self.pid = self.process.pid

    def line(self) -> str:
        """The next line that it prints."""
        said = self.process.line(SOON_S)
        assert said, f"it ended: {self.process.ended(SOON_S)}"
        return said.rstrip("\n")

    def members(self) -> list[int]:
        """All living processes of its session."""
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid and fields[0] not in ("Z", "X"):
                    found.append(int(entry))
        return found

    def ended(self, timeout_s: float = SOON_S) -> tuple[int, str, str]:
        """Its exit code, output and errors."""
        return self.process.ended(timeout_s)

    def close(self) -> None:
        for pid in self.members():
            kill(pid)
        self.process.wait(SOON_S)
        self.process.close()


@contextmanager
def script(code: str, *args: Any, server: bool = True) -> Iterator[Script]:
    """A script that is ended, with all its processes, when the context is. `server`: see `Forked`."""
    running = Script(code, *args, server=server)
    try:
        yield running
    finally:
        running.close()


def run_alone(code: str, *args: Any, timeout_s: float = SOON_S) -> tuple[int, str, str]:
    """Run a script to its end: exit code, output and errors. No process of it may be left."""
    with script(code, *args) as running:
        done = running.ended(timeout_s)
        assert running.members() == [], "processes were left behind"
        return done
