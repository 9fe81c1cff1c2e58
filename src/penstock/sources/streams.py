"""What streams over files have in common: each file is a shard, unless the format says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.sources.shards import Options, files_label, names_content
from penstock.sources.source import StreamSource


class FileStream(StreamSource):
    """Records of files that are read forward."""

    def __init__(self, paths: Sequence[str], options: Options = None) -> None:
        self.paths = list(paths)
        self.options = options

    @property
    def label(self) -> str:
        return files_label(self.verb, self.paths)

    @property
    def content(self) -> str:
        return f"{names_content(self.paths)} {self.reading}".rstrip()

    @property
    def reading(self) -> str:
        """What else decides what a sample is: arguments of the source."""
        return ""

    def shards(self) -> Sequence[Any]:
        return self.paths
