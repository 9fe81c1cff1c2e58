"""What systems differ in: what penstock does where a call of the operating system is missing or refused."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Any


def at_fork(**hooks: Callable[[], Any]) -> None:
    """`os.register_at_fork`; nothing where there is no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


class _ThisProcess:
    """Which process this is, and which is its main thread, without a system call."""

    __slots__ = ("main_thread", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.main_thread = threading.main_thread().ident


process = _ThisProcess()
#: what this process is called, if it is a worker of another; its number stands after the last dot
worker_name = ""
at_fork(after_in_child=process.__init__)  # type: ignore[misc]


def memory_file(name: str) -> int | None:
    """The descriptor of a new file in memory; None where the system has no such files."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as exc:
        # Old kernels and some sandboxes have the name and not the call.
        if exc.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def why_no_processes() -> str:
    """Why there can be no worker processes on this system; nothing if there can be."""
    import socket

    if os.name == "posix" and hasattr(socket, "CMSG_SPACE"):
        return ""
    return (
        f"this system ({sys.platform}) has no sockets that carry file descriptors, which worker processes need; "
        "use threads (on='thread') or coroutines (on='async')"
    )


def reason(code: int) -> str:
    """Why the system refused, with the next step where there is one."""
    why = os.strerror(code)
    if code == errno.EMFILE:
        return f"{why}; raise the limit on open files with `ulimit -n`, or use fewer workers"
    return why
