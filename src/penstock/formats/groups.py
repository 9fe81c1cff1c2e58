"""Decoded parts of files, such as row groups: each is decoded once while it is in use, within a bound on bytes.

Several threads may ask for the same group at once: one decodes it and the others wait. The group that was used
least recently is dropped first; the newest is always kept, however large it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


D = TypeVar("D", bound=_Sized)


class _Group(Generic[D]):
    """A group that is being decoded, or has been."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.decoded: D | None = None


class Groups(Generic[D]):
    """The groups of one source in one process."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._groups: OrderedDict[Hashable, _Group[D]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, decode: Callable[[], D]) -> D:
        """The group of this key: one that is kept, or what `decode` makes."""
        with self._lock:
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group()
            else:
                self._groups.move_to_end(key)
        found = group.decoded
        if found is not None:
            return found
        with group.lock:
            if group.decoded is None:
                try:
                    group.decoded = decode()
                except BaseException:
                    with self._lock:
                        self._groups.pop(key, None)
                    raise
                self._account(group.decoded.nbytes)
            return group.decoded

    def _account(self, nbytes: int) -> None:
        with self._lock:
            self._bytes += nbytes
            for key in list(self._groups):
                if self._bytes <= self.most_bytes or len(self._groups) == 1:
                    return
                decoded = self._groups[key].decoded
                if decoded is not None:  # one that is being decoded counts when it is done
                    del self._groups[key]
                    self._bytes -= decoded.nbytes

    def __getstate__(self) -> int:
        return self.most_bytes

    def __setstate__(self, state: int) -> None:
        Groups.__init__(self, state)
