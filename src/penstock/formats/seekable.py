"""A file of any storage as a Python file object that can seek, for libraries that ask for one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from penstock import storage
from penstock.storage.remote import Seekable


def arrow_name(path: str) -> str | None:
    """A local path that libraries take which know names as UTF-8 only; None for other names, and for URLs."""
    here = storage.local(path)
    return here if here is not None and "\\ud" not in ascii(here) else None


def seekable(path: str, options: Mapping[str, Any] | None = None) -> io.RawIOBase:
    """`path` as an unbuffered file object. Each read is one request."""
    return Seekable(storage.file(path, options))
