"""What does it cost to be watched?

The same epoch with nobody looking and with somebody looking, in turn: two threads compute, and the training loop
takes batches as they come. What is compared is the CPU time of this process, all its threads included; on a shared
machine the clock says little. Whoever looks is another process, and its time is its own.
  CPU time more with the page open in another process: news twice a second      target: below 5 %
  CPU time more with a page that nobody has opened                              target: below 2 %
  CPU time more while a trace is recorded and written                           target: below 5 %
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Bench

import penstock as ps

#: a client as a browser is one: it opens the stream of events and reads
_CLIENT = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as events:
    print(events.readline()[:4], flush=True)
    for line in events:
        pass
"""


def sort(number: int) -> int:
    np.sort(np.random.default_rng(number).random(20_000))
    return number


@contextmanager
def unseen(loader: ps.Loader[Any]) -> Iterator[None]:
    yield


@contextmanager
def opened(loader: ps.Loader[Any]) -> Iterator[None]:
    assert loader.dashboard_url is not None
    url = loader.dashboard_url.replace("/?", "/events?")
    with subprocess.Popen([sys.executable, "-c", _CLIENT, url], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        yield
        loader.close()  # which ends the stream, and the client with it


@contextmanager
def traced(loader: ps.Loader[Any]) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, loader.trace(Path(folder) / "run.json"):
        yield


def cpu_s(samples: int, look: Callable[[Any], Any], dashboard: bool) -> float:
    """CPU seconds of one epoch, the end of the loader included."""
    gc.collect()
    data = ps.from_sequence(range(samples)).map(sort, workers=2).batch(16)
    with redirect_stderr(StringIO()), data.loader(dashboard=dashboard) as loader, look(loader):
        began = time.process_time()
        for _ in loader:
            pass
        return time.process_time() - began


def main() -> None:
    bench = Bench("observing", __doc__)
    samples = bench.size(4000, 400)
    cases: list[tuple[str, Callable[[Any], Any], bool, float]] = [
        ("the page is open", opened, True, 5),
        ("there is a page", unseen, True, 2),
        ("traced", traced, False, 5),
    ]
    for name, look, dashboard, below in cases:
        more = []
        for pair in range(bench.pairs + 1):
            sides = [(look, dashboard), (unseen, False)]
            if pair % 2:
                sides.reverse()
            took = {side: cpu_s(samples, *side) for side in sides}
            more.append((took[look, dashboard] / took[unseen, False] - 1) * 100)
        bench.limit(name, more[1:], below=below, unit="%")  # the first pair warms up
    bench.finish()


if __name__ == "__main__":
    main()
