"""Where running loaders say how they can be watched, so that ``penstock top`` finds them.

Each loader with a dashboard keeps one file in a folder that only its user can read. The file has the address of the
page with its token: whoever can read it may watch. It goes when the loader ends. A file that a killed process left
behind is removed by whoever looks next.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from penstock.errors import PenstockError

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Notice:
    """One loader that can be watched."""

    pid: int
    #: on shared file systems, and in containers that share a folder, a process number says nothing elsewhere
    host: str
    port: int
    token: str
    title: str
    #: seconds since 1970
    began: float

    @property
    def url(self) -> str:
        """The page, for a browser on this machine."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"


def folder() -> Path:
    """The folder of this user's notices, made if need be. An error if others could read or change it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    uid = os.getuid() if hasattr(os, "getuid") else 0
    path = (
        Path(runtime) / "penstock"
        if runtime and os.path.isdir(runtime)
        else Path(tempfile.gettempdir()) / f"penstock-{uid}"
    )
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=False)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PenstockError(f"{str(path)!r} is not a folder; remove it, or set XDG_RUNTIME_DIR to another place")
    if hasattr(os, "getuid") and (found.st_uid != uid or found.st_mode & 0o077):
        raise PenstockError(
            f"{str(path)!r} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}, so others "
            "may read it; make it your own with mode 700, or set XDG_RUNTIME_DIR to another place"
        )
    return path


def post(notice: Notice) -> Path:
    """Let others find this loader; returns the file to `remove`."""
    path = folder() / f"{notice.pid}-{next(_numbers)}.json"
    path.unlink(missing_ok=True)  # of an earlier process with this number
    partial = path.with_suffix(".part")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(notice), file)
    partial.replace(path)
    return path


def remove(path: Path) -> None:
    """The loader cannot be watched any more."""
    with suppress(OSError):
        path.unlink()


def notices() -> list[Notice]:
    """The loaders of this user that can be watched on this machine, the newest first."""
    return sorted(_alive(), key=lambda one: -one.began)


def _alive() -> Iterator[Notice]:
    for path in folder().glob("*.json"):
        try:
            notice = Notice(**json.loads(path.read_text()))
        except FileNotFoundError:
            continue  # it has just ended
        except (OSError, ValueError, TypeError):
            remove(path)
            continue
        if notice.host != socket.gethostname():
            continue
        if _listens(notice):
            yield notice
        else:
            remove(path)


def _listens(notice: Notice) -> bool:
    """Whether its process lives, and still has the page. A process number alone may be in use again."""
    try:
        os.kill(notice.pid, 0)
        with socket.create_connection(("127.0.0.1", notice.port), timeout=1.0):
            return True
    except TimeoutError:
        return True  # stopped, or too busy to answer
    except OSError:
        return False
