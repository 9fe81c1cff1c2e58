"""Pipelines that tests serve, and servers in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tests import nursery

import penstock as ps

SOON_S = 60.0
HERE = "tcp://127.0.0.1:0"


def numbered(i: int) -> dict[str, Any]:
    if i == 13:
        raise ps.Skip("unlucky")
    return {"i": i, "x": np.full(8, i, np.float32)}


def pipeline(n: int = 120) -> ps.Pipeline[Any]:
    """Batches of four; sample 13 is left out, so that batches are not where positions say."""
    return ps.from_sequence(range(n)).shuffle().map(numbered, workers=1).batch(4)


def stream(n: int = 120) -> ps.Pipeline[Any]:
    """A stream behind a filter and a window: no position leads to a batch."""
    return ps.from_iterable(range(n)).filter(even_or_big).shuffle(window=16).map(numbered).batch(4)


def plain(n: int = 96) -> ps.Pipeline[Any]:
    """Without a sample that is left out: positions are dealt to servers."""
    return ps.from_sequence(range(n)).shuffle().map(lambda i: {"i": i}).batch(4)


def megabytes(n: int) -> ps.Pipeline[Any]:
    """Batches of 1 MB."""
    return ps.from_sequence(range(n)).map(lambda i: np.full(1 << 20, i & 255, np.uint8))


def even_or_big(i: int) -> bool:
    return i % 2 == 0 or i > 50


def seen(batches: Any) -> list[list[int]]:
    """What is in batches, as plain numbers."""
    return [batch["i"].tolist() for batch in batches]


def locally(served: ps.Pipeline[Any], epochs: int = 1, seed: int = 0) -> list[list[list[int]]]:
    """The batches of some epochs, made here."""
    with served.loader(seed=seed) as loader:
        return [seen(batches) for _, batches in loader.epochs(epochs)]


SERVER = """
import json, sys
import penstock as ps
from tests.service import served
options = json.loads(sys.argv[1])
made = getattr(served, options.pop("pipeline", "pipeline"))(*options.pop("args", []))
with ps.serve(made, **options) as server:
    print(server.address, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.stats()), flush=True)
"""


class Process:
    """A server in a process of its own."""

    def __init__(self, **options: Any) -> None:
        self._script = nursery.Forked(SERVER, json.dumps({"bind": HERE, **options}), server=False)
        self.address = self._script.line(SOON_S).strip()
        self.pid = self._script.pid
        if not self.address:
            raise AssertionError(self._script.ended(SOON_S))

    def stats(self) -> dict[str, float]:
        self._script.write("\n")
        return dict(json.loads(self._script.line(SOON_S)))

    def end(self) -> int:
        """Have it close; its exit code."""
        self._script.end_input()
        code, _, errors = self._script.ended(SOON_S)
        assert not code, errors
        return code

    def kill(self) -> None:
        self._script.kill()

    def close(self) -> None:
        self._script.kill()
        self._script.close()


@contextmanager
def server_process(**options: Any) -> Iterator[Process]:
    process = Process(**options)
    try:
        yield process
    finally:
        process.close()
