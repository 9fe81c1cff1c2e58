"""from_files: the bytes of files, each with its path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.checks import check_on_error
from penstock.errors import OnError
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.listing import Listing, one_line, read_or_skip
from penstock.sources.source import Indices


class FileSource(ChosenSource):
    """``{"data": bytes, "path": str}`` for every file, or its path alone.

    The files are listed when the source is made; nothing is opened before it is read.
    """

    verb = "from_files"

    def __init__(
        self,
        paths: Any,
        *,
        read: bool = True,
        indices: Any = None,
        manifest: str | os.PathLike[str] | None = None,
        allow_empty: bool = False,
        on_error: OnError = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.listing = Listing.of_paths(paths, storage_options, manifest, self.verb)
        self.subset = subset_of(len(self.listing), indices, self.verb)
        self.reads = read
        self.allow_empty = allow_empty
        self.on_error = check_on_error(on_error, self.verb)

    @property
    def label(self) -> str:
        folder = one_line(self.listing.folder.rstrip("/").rpartition("/")[2])
        return f"from_files({f'{folder}: ' if folder else ''}{len(self.listing)} files)"

    @property
    def whole_content(self) -> str:
        return self.listing.content

    @property
    def heap_bytes(self) -> int:
        return self.listing.names.nbytes

    @property
    def whole_length(self) -> int:
        return len(self.listing)

    def name(self, index: int) -> str:
        return self.listing.path(index if self.subset is None else int(self.subset[index]))

    def read(self, indices: Indices) -> Sequence[Any]:
        chosen = self.numbers(indices)
        numbers = chosen if isinstance(chosen, range) else chosen.tolist()
        paths = self.listing.paths(numbers)
        if not self.reads:
            return paths
        found = read_or_skip(self.listing, paths, self.allow_empty, self.on_error)
        return [{"data": data, "path": path} for data, path in zip(found, paths, strict=True)]
