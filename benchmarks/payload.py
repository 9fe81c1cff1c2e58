"""What does it cost to bring samples into the form in which they go to another process, and back?

Each side turns a chunk of samples into a header and bytes in one warm memory, and the two into samples again.
Arrays then look into the memory and can be written to. No process takes part.
  ours     `penstock.memory.codec`, between our own processes: pickle, with arrays copied straight into the memory
  pickle   protocol 5 with out-of-band buffers, as its documentation shows it; everything is then copied into the
           memory                                                      target: ours at least 0.8 of its rate, since
           ours has a fixed cost of about 5 µs a chunk for what cloudpickle can send and pickle cannot
  network  `penstock.memory.network`, which cannot run code of the sender; for comparison, no target
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from _measure import Bench, Contestant
from numpy.typing import NDArray

from penstock.memory import codec, network

Chunk = list[Any]

MEMORY = np.zeros(16_000_000, np.uint8)
ALIGNMENT = 64


def by_codec(chunk: Chunk) -> Chunk:
    layout = codec.layout_of(chunk)
    layout.write(MEMORY.data)
    found: Chunk = codec.decode(layout.header, MEMORY)
    return found


def by_network(chunk: Chunk) -> Chunk:
    layout = network.layout_of(chunk)
    layout.write(MEMORY.data)
    found: Chunk = network.decode(layout.header, MEMORY)
    return found


def by_pickle(chunk: Chunk) -> Chunk:
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(chunk, 5, buffer_callback=buffers.append)
    views: list[NDArray[np.uint8]] = []
    end = 0
    for data in [*(buffer.raw() for buffer in buffers), stream]:
        raw = np.frombuffer(data, np.uint8)
        views.append(MEMORY[end : end + raw.nbytes])
        views[-1][:] = raw
        end += -(-raw.nbytes // ALIGNMENT) * ALIGNMENT
    found: Chunk = pickle.loads(views.pop(), buffers=views)
    return found


def chunks() -> dict[str, tuple[Chunk, int]]:
    """Chunks by name, and how often a run carries each of them."""
    rng = np.random.default_rng(0)
    rows = [{**{f"n{k}": i + k / 2 for k in range(5)}, "name": f"train-{i:05d}.jpg"} for i in range(64)]
    return {
        "an array of 10 MB": ([rng.random(1_250_000)], 50),
        "a dict of 3 arrays of 150 KB": ([{k: rng.random(18_750) for k in "abc"}], 1000),
        "64 dicts of 5 numbers and a string": (rows, 500),
        "64 lists of 512 integers": ([rng.integers(0, 50_000, 512).tolist() for _ in range(64)], 50),
        "bytes of 100 KB": ([rng.bytes(100_000)], 3000),
        "64 dicts of 5 arrays of 2 KB": ([{f"f{k}": rng.random(256) for k in range(5)} for _ in range(64)], 50),
    }


def carried(carry: Callable[[Chunk], Chunk], chunk: Chunk, times: int) -> Contestant:
    def run() -> int:
        return sum(len(carry(chunk)) for _ in range(times))

    return run


def main() -> None:
    bench = Bench("payload", __doc__)
    for name, (chunk, full) in chunks().items():
        times = bench.size(full, quick=max(full // 10, 1))
        ours = carried(by_codec, chunk, times)
        bench.versus(f"{name}, pickle", ours, carried(by_pickle, chunk, times), at_least=0.8)
        bench.versus(f"{name}, network", ours, carried(by_network, chunk, times), at_least=0)
    bench.finish()


if __name__ == "__main__":
    main()
