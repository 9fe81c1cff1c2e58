"""Tar archives in the WebDataset layout, which other readers of that layout understand.

A field is a member: an array ``.npy``, text ``.txt``, what JSON can hold ``.json``, bytes under the field's own
name, and the rest ``.msgpack``. A comment in the archive says so; `from_tar` then gives back the samples that were
written. Times, owners and padding are always the same, so the same samples give the same bytes.
"""

from __future__ import annotations

import re
import tarfile
from typing import Any, BinaryIO

from penstock.errors import NotCarried
from penstock.formats.fields import written
from penstock.formats.tar import BLOCK
from penstock.formats.webdataset import TREE, sample_name
from penstock.writers.writer import FileWriter

_PLAIN = re.compile(rb"[\x20-\x7e]{1,100}")
_LARGEST = 8**11
#: an archive fills whole records of this size, as tar writes them
_RECORD = 20 * BLOCK


class TarWriter(FileWriter):
    """See `from_tar`, which reads it back."""

    format = "tar"
    suffix = "tar"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._keys: dict[str, int] = {}
        self._at = 0

    def opened(self, file: BinaryIO) -> None:
        self._keys = {}
        self._at = 0

    def written(self, file: BinaryIO, number: int, sample: Any) -> int:
        given = type(sample) is dict and type(sample.get("__key__")) is str
        known = self.memo.setdefault("keys", "given" if given else "number")
        if (known == "given") != given:
            raise NotCarried(
                f"sample {number} has {'a' if given else 'no'} '__key__', and samples before it have "
                f"{'none' if given else 'one'}; give all of them one, or none, with map()"
            )
        start = self._at
        if not start:
            self._put(file, tarfile.TarInfo.create_pax_global_header({"comment": (TREE + known.encode()).decode()}))
        key = sample["__key__"] if given else f"{number:09d}"
        self._check(key, number)
        fields = {name: value for name, value in sample.items() if name != "__key__"} if given else sample
        for extension, data in written(fields).items():
            name = f"{key}.{extension}".encode("utf-8", "surrogateescape")
            self._put(file, _header(name, len(data)))
            self._put(file, data)
            self._put(file, bytes(-len(data) % BLOCK))
        return self._at - start

    def _put(self, file: BinaryIO, data: bytes) -> None:
        self._at += file.write(data)

    def _check(self, key: str, number: int) -> None:
        """Refuse keys that could not be told apart, or from fields, when they are read."""
        name = key.encode("utf-8", "surrogateescape")
        parts = sample_name(name + b".x", TREE)
        odd = "\0" in key or key.startswith("/") or ".." in key.replace("\\", "/").split("/")
        if odd or parts is None or parts[0] != name:
            raise NotCarried(
                f"sample {number} has the '__key__' {key!r}, which cannot name members of a tar archive: it needs "
                "a relative path without dots in its last part"
            )
        before = self._keys.setdefault(key, number)
        if before != number:
            raise NotCarried(f"samples {before} and {number} have the same '__key__' {key!r}; make them unique")

    def closing(self, file: BinaryIO) -> None:
        self._put(file, bytes(2 * BLOCK))
        self._put(file, bytes(-self._at % _RECORD))


def _header(name: bytes, size: int) -> bytes:
    """The header of a member; one of the usual kind is written out here, ten times as fast as by tarfile."""
    if not _PLAIN.fullmatch(name) or size >= _LARGEST:
        member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        member.size = size
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"0" * 11 + b"\0"
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2
    check = sum(head) + sum(tail) + 8 * 32
    return (head + b"%06o\0 " % check + tail).ljust(BLOCK, b"\0")
