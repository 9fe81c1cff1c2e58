"""What all readers do alike with their arguments: from patterns to files, and what a stream cannot do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import storage
from penstock.errors import OnError, PlanError
from penstock.formats.compressed import compression

#: a path, a pattern or a folder, on disk or by URL, or a list of these
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Options = Mapping[str, Any] | None


def files_of(paths: Any, what: str, options: Any, suffixes: tuple[str, ...]) -> list[str]:
    """The files that `paths` stand for. Of a folder, those with one of the suffixes of the format."""
    # Worker processes may have another working directory.
    found = [absolute(path) for path in storage.expanded(paths, what, options)]
    if isinstance(paths, (str, os.PathLike)) and _is_folder(os.fspath(paths), found):
        chosen = [path for path in found if storage.without_query(path).lower().endswith(suffixes)]
        if not chosen:
            raise PlanError(f"{what}: no file in {os.fspath(paths)!r} ends in {' or '.join(suffixes)}")
        return chosen
    return found


def absolute(path: str) -> str:
    """A local path as it is seen from every folder; a URL as it is."""
    return os.path.abspath(path) if storage.local(path) == path else path


def _is_folder(path: str, found: list[str]) -> bool:
    """Whether `path` is no pattern, and stands for files below it."""
    here = storage.local(path)
    if here is not None:
        return os.path.isdir(here)
    return not storage.has_magic(path) and found != [path]


def is_stream(paths: list[str], what: str) -> bool:
    """Whether the files are compressed, so that they can only be read forward."""
    kinds = {compression(path) != "": path for path in paths}
    if len(kinds) > 1:
        raise PlanError(
            f"{what}: {kinds[True]!r} is compressed and {kinds[False]!r} is not; read them as two pipelines and "
            "put them together with concat() or mix()"
        )
    return True in kinds


def or_packed(*suffixes: str) -> tuple[str, ...]:
    """The suffixes of a format, plain and compressed."""
    return tuple(f"{suffix}{packed}" for packed in ("", ".gz", ".zst") for suffix in suffixes)


def refuse_stream(indices: Any, on_error: OnError = "raise", instead: str = "decompress them") -> None:
    """Refuse arguments that need random access."""
    if indices is not None or on_error != "raise":
        name = "on_error" if indices is None else "indices"
        raise PlanError(
            f"{name}= needs files that can be read at any position, and these are read as a stream, forward; "
            f"{instead}, or use take(), skip() and filter()"
        )


def names_of(columns: Any, what: str) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        raise PlanError(f"{what}(columns=) takes a list of names, got {columns!r}; map() gives them other names")
    if isinstance(columns, str) or not all(isinstance(one, str) for one in columns):
        raise PlanError(f"{what}(columns=) takes a list of names, got {columns!r}")
    return list(columns)
