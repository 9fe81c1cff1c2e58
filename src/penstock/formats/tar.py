"""Tar archives: headers of ustar, pax and GNU, by position or as a stream. Nothing is ever extracted to disk.

`members` walks the headers of a file that can be read at any position and touches no data. `streamed` reads an
archive forward. Both give regular files only. Directories are left out. Links, devices, sparse files, absolute
names and names with ".." are refused by name, with the byte at which their header is. An archive must end with a
block of zeros, so one that was cut short is noticed wherever the cut is; and nothing but zeros may follow, so that
the second of two archives in one file is not lost.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from penstock.errors import ReadError

BLOCK = 512
_ZEROS = bytes(BLOCK)
#: what a header that describes the next one may take: a name, or pax records
_LONGEST = 1 << 20
#: read after the end of an archive
_TAPE = 1 << 20

_REGULAR = frozenset(b"0\0" + b"7")
_DIRECTORY = ord("5")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"LKxg"
_ODD = {
    ord("1"): "a hard link",
    ord("2"): "a symbolic link",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a named pipe",
}
_COMPRESSED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz"}
_SPARSE = "is a sparse file; only regular files are read (tar without --sparse writes them)"


class Member(NamedTuple):
    """A regular file in an archive: its name, where its header begins, where its data begins, its size."""

    name: bytes
    at: int
    data: int
    size: int


class _Headers:
    """Reads headers one after the other, and keeps what extended headers say of the next one."""

    def __init__(self, path: str, comments: list[bytes]) -> None:
        self.path = path
        self.comments = comments
        self._name: bytes | None = None
        self._size: int | None = None

    def bad(self, at: int, what: str) -> ReadError:
        return ReadError(f"{self.path}: byte {at}: {what}")

    def parsed(self, header: bytes, at: int) -> tuple[int, bytes, int]:
        """Kind, name and size that a header gives."""
        self._check(header, at)
        kind = header[156]
        size = self._number(header, at)
        name = self._name
        if name is None:
            name = header[:100].partition(b"\0")[0]
            if header[345] and header[257:263] == b"ustar\0":
                name = header[345:500].partition(b"\0")[0] + b"/" + name
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            if size > _LONGEST:
                raise self.bad(at, f"a header extension of {size} bytes, more than {_LONGEST}: the file is damaged")
        elif self._name is not None or self._size is not None:
            size = size if self._size is None else self._size
            self._name = self._size = None
        return kind, name, size

    def _check(self, header: bytes, at: int) -> None:
        """Compare the header's checksum. The low half of Adler-32 is the sum of the bytes, at the speed of C."""
        field = header[148:156]
        try:
            told = int(field.strip(b"\0 ") or b"0", 8)
        except ValueError:
            told = -1
        total = told + sum(field) - 256
        if told < 0 or (zlib.adler32(header) & 0xFFFF) != (1 + total) % 65521:
            signed = sum(header) - 256 * sum(byte > 127 for byte in header) - sum(field) + 256
            if told < 0 or signed != told:
                hint = _compressed(header) if at == 0 else ""
                what = "this is not a tar file" if at == 0 else "no header of a member, so the file is damaged"
                what = f"{what}; {hint}" if hint else what
                raise self.bad(at, what)

    def _number(self, header: bytes, at: int) -> int:
        field = header[124:136]
        if field[0] & 0x80:
            size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
        else:
            try:
                size = int(field.strip(b"\0 ") or b"0", 8)
            except ValueError:
                size = -1
        if not 0 <= size < 1 << 62:
            raise self.bad(at, f"a member with the size {field!r}: the file is damaged")
        return size

    def extend(self, kind: int, data: bytes, at: int) -> None:
        """Take in an extended header."""
        if kind == _LONG_NAME:
            self._name = data.partition(b"\0")[0]
        elif kind != _LONG_LINK:
            self._pax(data, at, kind == _PAX_GLOBAL)

    def _pax(self, data: bytes, at: int, for_all: bool) -> None:
        while data.rstrip(b"\0"):
            length, space, _ = data.partition(b" ")
            if not space or not length.isdigit() or not len(length) + 1 < int(length) <= len(data):
                raise self.bad(at, "a pax header that cannot be read: the file is damaged")
            key, equals, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
            data = data[int(length) :]
            if not equals:
                raise self.bad(at, "a pax header without '=': the file is damaged")
            if for_all:
                if key == b"comment":
                    self.comments.append(value)
            elif key == b"path":
                self._name = value
            elif key == b"size" and value.isdigit() and len(value) < 19:
                self._size = int(value)
            elif key.startswith(b"GNU.sparse"):
                name = value if key == b"GNU.sparse.name" else self._name
                what = "the member that follows" if name is None else _shown(name)
                raise self.bad(at, f"{what} {_SPARSE}")

    def accepted(self, kind: int, name: bytes, at: int) -> bool:
        """Whether this is a regular file. Refuses whatever could be mistaken for one."""
        if kind == _DIRECTORY or (kind in _REGULAR and name.endswith(b"/")):
            return False
        if kind not in _REGULAR:
            if kind == ord("S"):
                raise self.bad(at, f"{_shown(name)} {_SPARSE}")
            what = _ODD.get(kind, f"a member of kind {chr(kind)!r}")
            raise self.bad(
                at, f"{_shown(name)} is {what}; only regular files are read (tar --dereference writes them)"
            )
        if name[:1] == b"/" or (b".." in name and b".." in name.replace(b"\\", b"/").split(b"/")):
            raise self.bad(
                at, f"the name {_shown(name)} leads out of the archive; write it with a plain relative one"
            )
        return True


def _shown(name: bytes) -> str:
    """A name that may hold anything, on one line."""
    return repr(name.decode("utf-8", "backslashreplace"))


def members(
    path: str, size: int, read_at: Callable[[int, int], bytes], chunk: int, comments: list[bytes]
) -> Iterator[Member]:
    """The regular files of an archive of `size` bytes, from its headers alone.

    `chunk` bytes are read at a time; a chunk has several headers where members are small. Comments of
    global headers are added to `comments`.
    """
    headers = _Headers(path, comments)
    held, start = b"", 0
    at = 0
    while True:
        if not start <= at <= start + len(held) - BLOCK:
            if at + BLOCK > size:
                if hint := _compressed(read_at(0, min(size, 8))):
                    raise headers.bad(0, f"this is not a tar file; {hint}")
                raise _cut(headers, at, size)
            held, start = read_at(at, min(chunk, size - at)), at
        header = held[at - start : at - start + BLOCK]
        if header == _ZEROS:
            _check_rest(headers, at + BLOCK, size, read_at)
            return
        kind, name, length = headers.parsed(header, at)
        data = at + BLOCK
        if data + length > size:
            raise headers.bad(
                at, f"{_shown(name)} has {length} bytes, and {max(0, size - data)} follow: the file was cut short"
            )
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            headers.extend(kind, read_at(data, length), at)
        elif headers.accepted(kind, name, at):
            yield Member(name, at, data, length)
        else:
            length = 0 if kind == _DIRECTORY else length
        at = data + length + -length % BLOCK


def _check_rest(headers: _Headers, at: int, size: int, read_at: Callable[[int, int], bytes]) -> None:
    """Refuse whatever follows the end of an archive but zeros."""
    while at < size:
        data = read_at(at, min(_TAPE, size - at))
        if data.count(0) < len(data):
            raise _more(headers, at + len(data) - len(data.lstrip(b"\0")))
        at += len(data)


def _more(headers: _Headers, at: int) -> ReadError:
    at -= at % BLOCK
    return headers.bad(
        at,
        "something follows the end of the archive: another archive, or damage; write one archive per file, or join "
        "them with tar --concatenate",
    )


def _compressed(start: bytes) -> str:
    """What to do with a file that begins so; "" if it does not look compressed."""
    kind = next((kind for magic, kind in _COMPRESSED.items() if start.startswith(magic)), "")
    if kind in ("", ".gz", ".zst"):
        return kind and f"it is compressed: name it .tar{kind}"
    return f"it is compressed, and {kind} is not read: use .tar.gz or .tar.zst"


def _cut(headers: _Headers, at: int, size: int) -> ReadError:
    if not size:
        return headers.bad(0, "the file is empty, not a tar file")
    return headers.bad(at, "the file ends here, without the zeros that end a tar file: it was cut short")


def streamed(
    path: str, stream: BinaryIO, most: int, wanted: Callable[[bytes], bool], comments: list[bytes]
) -> Iterator[tuple[Member, bytes]]:
    """The regular files of an archive that is read forward, with their data.

    The data of names that are not `wanted` are passed over, and come as ``b""``. A member of more than `most` bytes
    that is wanted is refused before memory is taken for it. Comments of global headers are added to `comments`.
    """
    headers = _Headers(path, comments)
    at = 0
    while True:
        header = stream.read(BLOCK)
        if len(header) < BLOCK:
            raise _cut(headers, at, at + len(header))
        if header == _ZEROS:
            # Zeros follow, as many as a tape block has; what checks the compressed whole comes after them.
            _pass_zeros(headers, stream, at + BLOCK)
            return
        kind, name, length = headers.parsed(header, at)
        data = at + BLOCK
        extends = kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL)
        keep = extends or (headers.accepted(kind, name, at) and wanted(name))
        if kind == _DIRECTORY:
            length = 0
        if keep and length > most:
            raise headers.bad(at, f"{_shown(name)} has {length} bytes, more than max_bytes={most}")
        content = stream.read(length) if keep else b""
        passed = len(content)
        at = data + length + -length % BLOCK
        passed += _pass(stream, at - data - passed)
        if passed < length:
            raise headers.bad(
                data - BLOCK, f"{_shown(name)} has {length} bytes, and {passed} follow: the file was cut short"
            )
        if extends:
            headers.extend(kind, content, data - BLOCK)
        elif kind in _REGULAR and not name.endswith(b"/"):
            yield Member(name, data - BLOCK, data, length), content


def _pass_zeros(headers: _Headers, stream: BinaryIO, at: int) -> None:
    while data := stream.read(1 << 16):
        if data.count(0) < len(data):
            raise _more(headers, at + len(data) - len(data.lstrip(b"\0")))
        at += len(data)


def _pass(stream: BinaryIO, count: int) -> int:
    """Read over so many bytes, a little at a time; how many there were."""
    left = count
    while left > 0 and (piece := stream.read(min(left, 1 << 16))):
        left -= len(piece)
    return count - left
