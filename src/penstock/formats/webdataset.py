"""The WebDataset layout of a tar archive: members ``key.field`` in a row that share a key are one sample.

The key is the name up to the first dot of its last part; folders belong to it. The field is what follows that dot,
in lower case. Names without either, such as ``README`` and ``.DS_Store``, belong to no sample and are left out, as
are names with a part in double underscores and the field ``__key__``. A key that comes back later in the archive,
and a field that a sample has twice, are refused with both positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import storage
from penstock.errors import ReadError
from penstock.formats.index import packed
from penstock.formats.tar import Member, members, streamed

#: what an index of this layout is called; its number changes with the arrays
KIND = "tar 3"
#: the comment of archives whose members hold parts of a sample tree; what follows says whose keys they have
TREE = b"penstock tree 1 keys="

_NAME = re.compile(rb"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_META = re.compile(rb"(?:^|/)__[^/]*__(?:$|/)")
#: bytes read at once over a network, where a request takes as long as this many bytes
_REMOTE_CHUNK = 1 << 20


def sample_name(name: bytes, tree: bytes = b"") -> tuple[bytes, bytes] | None:
    """Key and field of a member; None if it belongs to no sample. Fields of a `tree` keep their case.

    >>> sample_name(b"train/a.b/0001.seg.PNG")
    (b'train/a.b/0001', b'seg.png')
    >>> sample_name(b"train/.DS_Store") is sample_name(b"README") is None
    True
    """
    found = _NAME.fullmatch(name)
    if found is None or (b"__" in name and _META.search(name)):
        return None
    if found[2] == b"__key__" and not tree:
        return None  # a sample has its key under this name
    return found[1], found[2] if tree else found[2].lower()


def _tree(comments: list[bytes]) -> bytes:
    """What an archive says of how its members are encoded."""
    return next((one for one in comments if one.startswith(TREE)), b"")


class _Keys:
    """Refuses what comes twice in one archive."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.first_at: dict[bytes, int] = {}

    def add(self, key: bytes, at: int) -> None:
        before = self.first_at.setdefault(key, at)
        if before != at:
            raise ReadError(
                f"{self.path}: the key {_text(key)!r} is at byte {before} and again, after another key, at byte "
                f"{at}; a sample's members must follow each other (tar --sort=name writes them so)"
            )

    def refuse_field(self, key: bytes, field: bytes, one: int, other: int) -> ReadError:
        return ReadError(
            f"{self.path}: the sample {_text(key)!r} has the field {_text(field)!r} twice: at byte {one} and at "
            f"byte {other}"
        )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def build_index(file: storage.File) -> dict[str, NDArray[Any]]:
    """One pass over the headers of an archive.

    ``first``: the first member of each sample, and the number of all. ``at``, ``size``, ``field``: of each member.
    ``keys``, ``fields``: packed. ``tree``: what the archive says of how its members are encoded.
    """
    path = file.path
    keys = _Keys(path)
    names: list[bytes] = []
    fields: dict[bytes, int] = {}
    first: list[int] = []
    at: list[int] = []
    sizes: list[int] = []
    field_ids: list[int] = []
    last_key: bytes | None = None
    own: dict[bytes, int] = {}
    comments: list[bytes] = []
    chunk = _REMOTE_CHUNK if storage.local(path) is None else 16 * 512
    for member in members(path, file.size, file.read_at, chunk, comments):
        parts = sample_name(member.name, _tree(comments))
        if parts is None:
            continue
        key, field = parts
        if key != last_key:
            keys.add(key, member.at)
            names.append(key)
            first.append(len(at))
            last_key, own = key, {}
        if own.setdefault(field, member.at) != member.at:
            raise keys.refuse_field(key, field, own[field], member.at)
        at.append(member.data)
        sizes.append(member.size)
        field_ids.append(fields.setdefault(field, len(fields)))
    first.append(len(at))
    key_text, key_at = packed(names)
    field_text, field_at = packed(list(fields))
    return {
        "first": np.array(first, dtype=np.int64),
        "at": np.array(at, dtype=np.int64),
        "size": np.array(sizes, dtype=np.int64),
        "field": np.array(field_ids, dtype=np.int32),
        "keys": key_text,
        "key_at": key_at,
        "fields": field_text,
        "field_at": field_at,
        "tree": np.frombuffer(_tree(comments), dtype=np.uint8),
    }


class Found(NamedTuple):
    """A sample of an archive that is read forward: its key, its fields, and how these are encoded."""

    key: bytes
    fields: dict[bytes, bytes]
    tree: bytes


class _Forward:
    """Puts the members of an archive together as they come."""

    def __init__(self, path: str, skip: int, most: int, wanted: Callable[[bytes, bytes], bool]) -> None:
        self.path = path
        self.skip = skip
        self.most = most
        self.wanted = wanted
        self.comments: list[bytes] = []
        self.keys = _Keys(path)
        self.count = 0
        self.sample: Found | None = None
        self.places: dict[bytes, int] = {}
        self.size = 0

    @property
    def tree(self) -> bytes:
        return _tree(self.comments)

    def is_wanted(self, name: bytes) -> bool:
        """Whether the data of a member that comes next is needed."""
        parts = sample_name(name, self.tree)
        if parts is None:
            return False
        begins = self.sample is None or parts[0] != self.sample.key
        return self.count + begins > self.skip and self.wanted(parts[1], self.tree)

    def take(self, member: Member, data: bytes) -> Found | None:
        """Add a member; the sample before it, if that is complete now and not skipped."""
        parts = sample_name(member.name, self.tree)
        if parts is None:
            return None
        key, field = parts
        done = None
        if self.sample is None or key != self.sample.key:
            self.keys.add(key, member.at)
            done = self.end()
            self.sample, self.places, self.size = Found(key, {}, self.tree), {}, 0
            self.count += 1
        if self.places.setdefault(field, member.at) != member.at:
            raise self.keys.refuse_field(key, field, self.places[field], member.at)
        if self.count > self.skip and self.wanted(field, self.tree):
            self.size += member.size
            if self.size > self.most:
                raise ReadError(
                    f"{self.path}: byte {member.at}: the sample {_text(key)!r} has {self.size} bytes so far, more "
                    f"than max_bytes={self.most}"
                )
            self.sample.fields[field] = data
        return done

    def end(self) -> Found | None:
        """The sample that was put together last, if it is not skipped."""
        return self.sample if self.count > self.skip else None


def samples(
    path: str, stream: BinaryIO, skip: int, most: int, wanted: Callable[[bytes, bytes], bool]
) -> Iterator[Found]:
    """The samples of an archive that is read forward, without the first `skip`.

    `wanted` gets a field and the archive's tree; data that is not wanted is passed over. A sample of more than
    `most` bytes is refused.
    """
    forward = _Forward(path, skip, most, wanted)
    for member, data in streamed(path, stream, most, forward.is_wanted, forward.comments):
        found = forward.take(member, data)
        if found is not None:
            yield found
    found = forward.end()
    if found is not None:
        yield found
