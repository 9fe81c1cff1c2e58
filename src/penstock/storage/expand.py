"""From what the user writes to the names of files: a path, a list, a folder, a glob or braces, on disk or by URL.

Globs and folders are sorted by the bytes of the whole path, as object stores list them; lists and braces keep the
order in which they are written. A folder means all files below it. A path that exists is taken literally, whatever
letters it has. Hidden names are left out, unless the pattern spells the dot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby
from typing import Any

from penstock.errors import PlanError
from penstock.storage import disk, objects, systems
from penstock.storage.paths import braced, has_magic, joined, local, matcher, scheme_of, split_magic

#: all files below a folder
ALL = "**/*"

Options = Mapping[str, Any] | None
Path = str | os.PathLike[str]


def expanded(paths: Path | Sequence[Path], what: str, options: Options = None) -> list[str]:
    """The files that `paths` stands for; PlanError if there are none, or one that is named is not there.

    `what` is the function that the user has called, for the message. Files of object stores that are written out
    are not looked for: reading them tells.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        found = _files(os.fsdecode(paths), what, options, alone=True)
    elif isinstance(paths, Sequence):
        found = [name for one in paths for name in _files(os.fsdecode(one), what, options, alone=False)]
    else:
        raise PlanError(f"{what} takes a path, a pattern or a list of these, got {type(paths).__name__}")
    if not found:
        raise PlanError(f"{what}: nothing matches {_shown(paths)}; check the spelling and the working directory")
    return found


def listed(folder: str, pattern: str = ALL, options: Options = None) -> list[str]:
    """The names of the files below `folder` that match, relative to it and sorted: one listing."""
    return [os.fsdecode(name) for name in walked(folder, pattern, options)]


def walked(folder: str, pattern: str = ALL, options: Options = None) -> Iterator[bytes]:
    """As `listed`, one by one and in bytes: a million names need not be Python strings at once."""
    here = local(folder)
    patterns = braced(pattern)
    if here is not None:
        # Each walk is in order, and a name that fits several patterns is there once.
        walks = [disk.walk(here or ".", one) for one in patterns]
        return walks[0] if len(walks) == 1 else (name for name, _ in groupby(merge(*walks)))
    below = objects.names_below if scheme_of(folder) in objects.SCHEMES else systems.names_below
    matches = [matcher(one) for one in patterns]
    fits = matches[0] if len(matches) == 1 else lambda name: any(match(name) for match in matches)
    names = (name for name in below(folder, options) if fits(name) and not name.endswith("/"))
    return iter(sorted(os.fsencode(name) for name in names))


def folders(folder: str, options: Options = None) -> list[str]:
    """The names of the folders right below `folder`, sorted by their bytes; hidden ones are left out."""
    here = local(folder)
    if here is not None:
        found = disk.folders_in(here or ".")
    elif scheme_of(folder) in objects.SCHEMES:
        found = objects.folders_in(folder, options)
    else:
        found = systems.folders_in(folder, options)
    return sorted(found, key=os.fsencode)


def _files(path: str, what: str, options: Options, alone: bool) -> list[str]:
    here = local(path)
    if here is None:
        if not has_magic(path):
            return _remote(path, options, alone)
        return [name for one in braced(path) for name in _glob(one, options)]
    if os.path.isdir(here):
        return [joined(path, name) for name in listed(path)]
    if os.path.lexists(here):
        return [path]
    if not has_magic(here):
        raise PlanError(f"{what}: {path!r}: no such file or folder")
    found = []
    for one in braced(here):
        names = _glob(one, options)
        if not names and not split_magic(one)[1]:
            raise PlanError(f"{what}: {one!r}, which {path!r} stands for, is not there")
        found += names
    return found


def _glob(path: str, options: Options) -> list[str]:
    """The files that a glob without braces matches; the path itself if it is none."""
    folder, pattern = split_magic(path)
    here = local(path)
    if here is not None and (not pattern or os.path.lexists(path)):
        return [path] if os.path.lexists(path) else []
    if not pattern:
        return [path]
    if here is not None and not os.path.isdir(folder or "."):
        return []
    return [joined(folder, name) for name in listed(folder, pattern, options)]


def _remote(path: str, options: Options, alone: bool) -> list[str]:
    """A URL without a pattern is a folder if something is below it. In a list only a slash at its end says so."""
    folder = path.endswith("/")
    if not folder and (not alone or scheme_of(path) in ("http", "https")):
        return [path]
    try:
        names = listed(path, ALL, options)
    except PermissionError:
        if folder:
            raise
        return [path]  # whoever may read files need not be allowed to list them
    return [joined(path, name) for name in names] if names or folder else [path]


def _shown(paths: Any) -> str:
    return repr(os.fspath(paths)) if isinstance(paths, (str, os.PathLike)) else f"a list of {len(paths)} paths"
