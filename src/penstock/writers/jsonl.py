"""JSON lines: a sample per line. What JSON has no notation for is an object with one key, such as ``$array``."""

from __future__ import annotations

from typing import Any, BinaryIO

from penstock.formats.tree import to_json
from penstock.writers.writer import FileWriter


class JsonlWriter(FileWriter):
    """See `from_jsonl(tree=True)`, which reads it back."""

    format = "jsonl"
    suffix = "jsonl"

    def written(self, file: BinaryIO, number: int, sample: Any) -> int:
        return file.write(to_json(sample) + b"\n")
