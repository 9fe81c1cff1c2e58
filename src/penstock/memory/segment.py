"""A segment: shared memory without a name, reached through a descriptor and mapped into this process."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Callable
from functools import cache

from penstock import system

#: memory is reserved in steps: in older kernels a signal undoes the step, and a profiler sends many
_STEP_BYTES = 4 * 1024 * 1024

#: whether to try files in memory; tests turn them off
_MEMFD = True
#: without descriptors that can be sent there are no blocks, and callers copy
SENDABLE = hasattr(socket, "send_fds")


class Mapping:
    """The memory of a segment in this process, unmapped when the last array over it has died.

    Where it is `private`, writes stay in this process: a page that is written to is copied first, and all
    others are shared. mmap.mmap would hold a descriptor of its own for as long, before Python 3.13.
    """

    __slots__ = ("__array_interface__", "address", "size", "unmap")

    def __init__(self, fd: int, size: int, *, warm: bool = False, private: bool = False) -> None:
        libc = _libc()
        # Its own reference: late in the interpreter's exit the module may have lost its names.
        self.unmap: Callable[[int, int], int] = libc.munmap
        self.address, self.size = 0, size
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        if warm:
            flags |= getattr(mmap, "MAP_POPULATE", 0)
        address = libc.mmap(None, size, protection, flags, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(code := ctypes.get_errno(), os.strerror(code))
        self.address = address
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, False),
        }

    def free(self) -> None:
        """Give the pages back to the system for every process. Reading them gives zeros, not a signal."""
        advice = getattr(mmap, "MADV_REMOVE", None)
        if advice is not None:
            _libc().madvise(self.address, self.size, advice)

    def __del__(self) -> None:
        if getattr(self, "address", 0):  # not if it was interrupted before it was made
            self.unmap(self.address, self.size)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_long]
    libc.mmap.restype = address
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = [address, size, number]
    libc.memcmp.argtypes = [address, address, size]
    return libc


def same_bytes(address: int, other: int, nbytes: int) -> bool:
    """Whether two places in memory hold the same. Other threads run meanwhile."""
    return bool(_libc().memcmp(address, other, nbytes) == 0)


def new_segment(size: int) -> tuple[int, Mapping]:
    """New shared memory without a name, all of it reserved: its descriptor and where it is."""
    if not SENDABLE:
        raise OSError(errno.ENOSYS, "this system cannot hand descriptors to other processes")
    fd = system.memory_file("penstock") if _MEMFD else None
    if fd is None:
        fd = _unnamed(size)
    try:
        if hasattr(os, "posix_fallocate"):
            for start in range(0, size, _STEP_BYTES):
                os.posix_fallocate(fd, start, min(_STEP_BYTES, size - start))
        return fd, Mapping(fd, size)
    except BaseException:
        os.close(fd)
        raise


def _unnamed(size: int) -> int:
    """Shared memory where there is no memfd."""
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=size)
    try:
        memory.unlink()  # which also takes it from the resource tracker
        return os.dup(memory._fd)  # type: ignore[attr-defined]
    finally:
        memory.close()
