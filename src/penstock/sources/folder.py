"""from_folder: a folder of images with a folder for each class."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.checks import check_on_error
from penstock.errors import OnError, PlanError
from penstock.formats.columns import dicts
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.listing import Listing, one_line, read_or_skip
from penstock.sources.source import Indices
from penstock.storage import ALL, folders


class FolderSource(ChosenSource):
    """``{"image": bytes, "label": int, "path": str}`` for every file below a folder.

    The label is the number of the file's first-level folder among `classes`, the sorted names of all these folders.
    """

    verb = "from_folder"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        pattern: str = ALL,
        read: bool = True,
        labels: Literal["folder"] | None = "folder",
        indices: Any = None,
        manifest: str | os.PathLike[str] | None = None,
        on_error: OnError = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if labels not in ("folder", None):
            raise PlanError(
                f"from_folder: labels= is 'folder' or None, got {labels!r}; for others use labels=None and map()"
            )
        folder = os.fsdecode(path)
        self.listing = Listing.of_folder(
            folder, pattern, storage_options, manifest, lambda: folders(folder, storage_options)
        )
        if not len(self.listing):
            raise PlanError(f"from_folder: no file in {folder!r} matches {pattern!r}")
        self.subset = subset_of(len(self.listing), indices, self.verb)
        self.reads = read
        self.labelled = labels is not None
        self.on_error = check_on_error(on_error, self.verb)
        #: the names of the classes; a label is a number in this list
        self.classes: list[str] = []
        #: files are sorted, so those of a class follow each other: where each begins, and its label
        self._starts: list[int] = []
        self._labels: list[int] = []
        if labels is not None:
            self._find_classes()

    def _find_classes(self) -> None:
        names = self.listing.names
        firsts: list[bytes] = []
        index = 0
        while index < len(names):
            first, slash, _ = names[index].partition(b"/")
            if not slash:
                raise PlanError(
                    f"from_folder: {self.listing.path(index)!r} is in no class folder; leave it out by "
                    "pattern='*/**', or use labels=None"
                )
            firsts.append(first)
            self._starts.append(index)
            index = _behind(names, first + b"/", index)
        # A folder without files is a class too: otherwise the labels of training and test data could differ.
        classes = sorted({*firsts, *map(os.fsencode, self.listing.folders)})
        self._labels = [bisect_left(classes, first) for first in firsts]
        self.classes = list(map(os.fsdecode, classes))

    @property
    def label(self) -> str:
        folder = one_line(self.listing.folder.rstrip("/").rpartition("/")[2])
        classes = f"{len(self.classes)} classes" if self.labelled else "no labels"
        return f"from_folder({folder}: {len(self.listing)} files, {classes})"

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
        columns: dict[str, list[Any]] = {}
        if self.reads:
            columns["image"] = read_or_skip(self.listing, paths, False, self.on_error)
        if self.labelled:
            columns["label"] = [self._labels[bisect_right(self._starts, number) - 1] for number in numbers]
        columns["path"] = paths
        return dicts(list(columns), list(columns.values()), len(numbers))

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels of all samples, without reading one: for ``split(labels=)`` and ``resample(balance=)``."""
        if not self.labelled:
            raise PlanError(f"{self.label} was made with labels=None")
        counts = np.diff([*self._starts, len(self.listing)])
        found = np.repeat(np.array(self._labels, dtype=np.int64), counts)
        return found if self.subset is None else found[self.subset]


def _behind(names: Any, prefix: bytes, index: int) -> int:
    """The first name behind `index` without the prefix that all before it have: few looks at many names."""
    step = 1
    while index + step < len(names) and names[index + step].startswith(prefix):
        step *= 2
    low, high = index + step // 2, min(index + step, len(names))
    while high - low > 1:
        middle = (low + high) // 2
        if names[middle].startswith(prefix):
            low = middle
        else:
            high = middle
    return high
