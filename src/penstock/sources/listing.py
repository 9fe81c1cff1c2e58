"""The files that a source reads: listed once, packed, and kept in a manifest file on request.

What may be relied on: names are sorted by their bytes unless the user gave them; a name takes its own bytes
and 8 more; `digest` depends on the names alone, and not on the folder that they are in; every error names the file.

A manifest is a text file: its first line says what it is a listing of, and each further line is a name as a JSON
string. It is written under another name and then renamed. It is never refreshed: delete it to list again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from json.encoder import encode_basestring_ascii
from typing import Any

from penstock.errors import OnError, PlanError, ReadError, Skip
from penstock.memory.names import Names
from penstock.storage import (
    ALL,
    braced,
    expanded,
    file,
    has_magic,
    joined,
    local,
    read_all,
    read_whole,
    scheme_of,
    split_magic,
    walked,
)

_FORMAT = "penstock manifest 1"
#: lines of a manifest that are decoded at a time
_LINES = 4096

Options = Mapping[str, Any] | None


@dataclass(frozen=True)
class Listing:
    """Files, by a folder and names in it; without a folder each name is a whole path."""

    #: as the user wrote it
    folder: str
    names: Names
    options: Options = None
    #: what else a manifest keeps: the folders right below
    folders: tuple[str, ...] = ()
    #: where the files are for worker processes, whose working directory may be another; None if one is remote
    base: str | None = None

    @classmethod
    def of_folder(cls, folder: str, pattern: str, options: Options, manifest: Any, folders: Any = None) -> Listing:
        """All files below a folder that match. `folders()` names those right below it, if they matter."""
        here = local(folder)
        folder = folder if here is None else here

        def listed() -> tuple[Names, tuple[str, ...]]:
            names = Names.of(walked(folder, pattern, options))
            return names, tuple(folders()) if folders is not None else ()

        where = folder.rstrip("/") if here is None else os.path.abspath(here)
        if manifest is None:
            names, below = listed()
        else:
            names, below = _through_manifest(os.fspath(manifest), where, pattern, listed)
        return cls(folder, names, options, below, None if here is None else joined(where, ""))

    @classmethod
    def of_paths(cls, paths: Any, options: Options, manifest: Any, what: str) -> Listing:
        """What `from_files` takes: a folder, a glob, braces or a list of these and of names."""
        found = None
        if isinstance(paths, (str, bytes, os.PathLike)):
            found = cls._of_one(os.fsdecode(paths), options, manifest)
        if found is None:
            if manifest is not None:
                raise PlanError(f"{what}: manifest= is for a folder or a glob; a list of names needs no listing")
            alone = isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Sequence)
            found = cls._of_list(expanded(paths, what, options) if alone else paths, options, what)
        if not len(found):
            raise PlanError(
                f"{what}: no file matches {_shown(paths)}; check the spelling and the working directory"
            )
        return found

    @classmethod
    def _of_one(cls, path: str, options: Options, manifest: Any) -> Listing | None:
        """A folder or a glob; None for anything else."""
        here = local(path)
        if here is not None:
            if os.path.isdir(here):
                return cls.of_folder(here, ALL, options, manifest)
            folder, pattern = split_magic(here)
            glob = pattern and not os.path.lexists(here) and os.path.isdir(folder or ".")
            return (
                cls.of_folder(folder or ".", pattern, options, manifest)
                if glob and braced(here) == [here]
                else None
            )
        if scheme_of(path) in ("http", "https") or braced(path) != [path]:
            return None
        folder, pattern = split_magic(path)
        try:
            found = cls.of_folder(folder, pattern or ALL, options, manifest)
        except PermissionError:  # whoever may read files need not be allowed to list them
            found = None
        # What has nothing below it is a file.
        return found if pattern or (found is not None and len(found)) or path.endswith("/") else None

    @classmethod
    def _of_list(cls, paths: Sequence[Any], options: Options, what: str) -> Listing:
        """Names as they are written. Only patterns are looked for, since there may be a million names."""
        remote = False

        def names() -> Iterator[bytes]:
            nonlocal remote
            for path in map(os.fsdecode, paths):
                for one in expanded(path, what, options) if has_magic(path) else [path]:
                    here = local(one)
                    remote = remote or here is None
                    yield os.fsencode(one if here is None else here)

        packed = Names.of(names())
        return cls("", packed, options, (), None if remote else joined(os.getcwd(), ""))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        return self.names.digest()[:16]

    @property
    def content(self) -> str:
        """For `Source.content`."""
        return f"listing {self.digest}"

    def path(self, index: int) -> str:
        """The path of a file, as the user would write it."""
        return joined(self.folder, os.fsdecode(self.names[index]))

    def paths(self, indices: Iterable[int]) -> list[str]:
        """The paths of several files."""
        prefix, names = joined(self.folder, ""), self.names
        return [prefix + os.fsdecode(names[index]) for index in indices]

    def read(self, paths: Sequence[str], empty: bool) -> list[bytes]:
        """The bytes of files of this listing; ReadError for an empty one, unless `empty` allows it."""
        if self.base is None:
            found = read_all([file(path, self.options) for path in paths])
        elif self.folder == self.base or joined(self.folder, "") == self.base:
            found = list(map(read_whole, paths))
        else:
            # Relative to the working directory at the time of the listing; a path that is absolute stays so.
            skip = len(joined(self.folder, ""))
            found = [read_whole(os.path.join(self.base, path[skip:])) for path in paths]
        if not empty and not all(found):
            bad = next(path for path, data in zip(paths, found, strict=True) if not data)
            raise ReadError(f"{bad}: the file is empty")
        return found


def read_or_skip(listing: Listing, paths: Sequence[str], empty: bool, on_error: OnError) -> list[bytes]:
    """`Listing.read`; what cannot be read is left out and counted, if the user wants that."""
    try:
        return listing.read(paths, empty)
    except OSError as exc:
        if on_error == "raise":
            raise
        # If these are several, the loader reads them again one by one, and only the bad one is skipped.
        raise Skip(str(exc)) from exc


def one_line(name: str) -> str:
    """A name for a message: in one line, and with letters that can be printed.

    >>> one_line("a\\nb"), one_line("\\udcff")
    ('a\\\\nb', '\\\\udcff')
    """
    return name.encode(errors="backslashreplace").decode().replace("\n", "\\n")


def _shown(paths: Any) -> str:
    return repr(os.fspath(paths)) if isinstance(paths, (str, bytes, os.PathLike)) else "the list"


# ---------------------------------------------------------------------- the manifest


def _through_manifest(path: str, folder: str, pattern: str, listed: Any) -> tuple[Names, tuple[str, ...]]:
    if os.path.exists(path):
        return _loaded(path, folder, pattern)
    names, folders = listed()
    _save(path, folder, pattern, names, folders)
    return names, folders


def _save(path: str, folder: str, pattern: str, names: Names, folders: Sequence[str]) -> None:
    head = {
        "format": _FORMAT,
        "folder": folder,
        "pattern": pattern,
        "count": len(names),
        "digest": names.digest(),
        "folders": list(folders),
    }
    unfinished = f"{path}.{os.getpid()}.tmp"
    try:
        with open(unfinished, "w", encoding="ascii") as out:
            out.write(json.dumps(head) + "\n")
            out.writelines(f"{encode_basestring_ascii(os.fsdecode(name))}\n" for name in names)
            out.flush()
            os.fsync(out.fileno())
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise


def _decoded(lines: Iterator[str]) -> Iterator[bytes]:
    """A JSON string from each line; many at a time, since most of the cost is that of a call."""
    while some := list(islice(lines, _LINES)):
        found = json.loads(f"[{','.join(some)}]")
        if len(found) != len(some):
            raise ValueError("a line is no name")
        yield from map(os.fsencode, found)


def _loaded(path: str, folder: str, pattern: str) -> tuple[Names, tuple[str, ...]]:
    try:
        with open(path, encoding="ascii") as lines:
            head = json.loads(lines.readline())
            if not isinstance(head, dict) or head.get("format") != _FORMAT:
                raise ValueError(f"its first line does not say {_FORMAT!r}")
            if (head["folder"], head["pattern"]) != (folder, pattern):
                raise PlanError(
                    f"the manifest {path!r} is of {head['folder']!r} with the pattern {head['pattern']!r}, and not "
                    f"of {folder!r} with {pattern!r}; give another name, or delete it to list again"
                )
            names = Names.of(_decoded(lines))
        if (len(names), names.digest()) != (head["count"], head["digest"]):
            raise ValueError(f"it has {len(names)} names, and not the {head['count']} it was written with")
        return names, tuple(head["folders"])
    except (ValueError, KeyError, TypeError) as exc:
        raise PlanError(f"the manifest {path!r} is damaged: {exc}; delete it to list again") from exc
