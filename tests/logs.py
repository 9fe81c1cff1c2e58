"""A log that all processes write to: what a worker process cannot put into a list of the test's."""

# Worker processes import this file: it must stay cheap to import.

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Log:
    """Lines of words in a file, each with the process that wrote it. Pickles as the file's name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __call__(self, *words: Any) -> None:
        """Write a line; so short a one is written at once, behind all others."""
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{os.getpid()} {' '.join(map(str, words))}\n".encode())

    def lines(self) -> list[list[str]]:
        """The words of each line, the pid first."""
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def pids(self) -> set[int]:
        """Who has written."""
        return {int(pid) for pid, *_ in self.lines()}

    def numbers(self) -> Counter[int]:
        """How often each number has been written, as the first word."""
        return Counter(int(word) for _, word, *_ in self.lines())


class Counted:
    """A function that counts its calls by sample, in whatever process it is called."""

    def __init__(self, log: Log, fn: Callable[[Any], Any] = lambda x: x * 10) -> None:
        self.log = log
        self.fn = fn
        self.__name__ = "counted"

    def __call__(self, x: Any) -> Any:
        self.log(x)
        return self.fn(x)

    @property
    def calls(self) -> Counter[int]:
        """How often it was called with each sample."""
        return self.log.numbers()
