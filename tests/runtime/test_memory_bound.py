"""`memory=` over shared memory: blocks count, idle ones too, and go with their loader."""

import gc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.process_helpers import await_true

import penstock as ps

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at the process through /proc"),
    pytest.mark.usefixtures("warm_processes"),
]

ALLOWED, LARGEST, WORKERS = 2_000_000, 400_000, 2
#: a worker hands in what it has when it has made so much, so a chunk is at most that and one sample; blocks come in
#: eight sizes per doubling
CHUNK = (ALLOWED // (4 * WORKERS) + LARGEST) * 9 // 8


def sizes(n):
    """Very different sizes, in several orders."""
    rng = np.random.default_rng(3)
    return {
        "of all sizes": np.exp(rng.uniform(np.log(1000), np.log(LARGEST), n)).astype(int),
        "small, rarely large": np.where(rng.random(n) < 0.1, LARGEST, 1000),
        "small, then large": np.where(np.arange(n) // 25 % 2, LARGEST, 1000),
        "alike": np.full(n, LARGEST // 4),
    }


def mapped_bytes():
    """Bytes of our blocks that this process maps; not the single pages on which workers note what they do."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "memfd:penstock" in line]
    return sum(size for low, high in spans if (size := int(high, 16) - int(low, 16)) > 4096)


@contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def large(x):
    return np.full(300_000, x)


def test_blocks_idle_ones_included_keep_to_the_bound():
    with ps.Processes(WORKERS) as pool:
        for kind, wanted in sizes(80).items():
            data = ps.from_sequence(wanted.tolist()).map(lambda n: np.full(n, n % 256, np.uint8), on=pool)
            with data.loader(memory=ALLOWED, epochs=2) as loader:
                for _ in range(2):
                    for n, sample in zip(wanted, loader, strict=True):
                        assert (len(sample), sample[0], sample[-1]) == (n, n % 256, n % 256)
                        del sample
                stats, budget = loader.stats(), loader._engine.budget
            # a chunk per worker, the head of the line, and what the reader has in hand
            assert stats["memory.blocks_peak_bytes"] <= ALLOWED + (WORKERS + 2) * CHUNK, kind
            assert budget.peak <= ALLOWED + (WORKERS + 1) * CHUNK, kind
            assert budget.used == 0


def test_several_stages_on_processes_share_one_bound():
    """What goes to a process is there twice, and all that is idle is in one place."""
    wanted = sizes(150)["of all sizes"].tolist()
    with ps.Processes(WORKERS) as pool:
        data = (
            ps.from_iterable(lambda: (np.full(n, 1, np.uint8) for n in wanted))
            .map(lambda x: x + 1, on=pool)
            .filter(len, on="thread")
            .map(lambda x: x[: len(x) // 2] + 1, on=pool)
        )
        with data.loader(memory=ALLOWED, epochs=1) as loader:
            assert [len(sample) for sample in loader] == [n // 2 for n in wanted]
            # each worker: a chunk to make, and what came for it
            assert loader.stats()["memory.blocks_peak_bytes"] <= ALLOWED + (2 * WORKERS + 2) * CHUNK


def test_blocks_of_an_isolated_loader_keep_to_the_bound_on_both_sides():
    wanted = sizes(150)["of all sizes"]
    data = ps.from_sequence(wanted.tolist()).map(lambda n: np.full(n, 1, np.uint8), on="process", workers=1)
    with data.loader(memory=ALLOWED, isolate=True, epochs=1) as loader:
        assert [len(sample) for sample in loader] == wanted.tolist()
        stats, here = loader.stats(), loader._engine.blocks.peak_bytes
    # here: what is in hand, and one that is on its way whatever its size
    assert 0 < here <= ALLOWED // 4 + 2 * CHUNK
    assert here < stats["memory.blocks_peak_bytes"] <= ALLOWED + 5 * CHUNK


def test_an_isolated_loader_with_too_little_memory_for_one_sample_goes_on():
    data = ps.from_sequence(range(20)).map(lambda x: np.full(100_000, x, np.uint8), workers=2)
    with data.loader(memory="50kB", isolate=True, timeout_s=20) as loader:
        for _ in range(2):
            assert [int(sample[-1]) for sample in loader] == list(range(20))
            next(iter(loader))


@pytest.mark.parametrize("isolate", [False, True])
def test_blocks_of_a_loader_that_is_broken_off_go_without_the_garbage_collector(isolate):
    data = ps.from_sequence(range(20)).map(large, on=None if isolate else "process", workers=1)
    with no_collector():
        before = mapped_bytes()
        for _ in range(2):
            for _sample in data.loader(isolate=True).once() if isolate else data:
                break
        del _sample
        await_true(lambda: mapped_bytes() <= before, "the end of all blocks")


@pytest.mark.parametrize("how", ["started", "read from", "read to the end"])
def test_blocks_of_a_loader_that_is_dropped_go_without_the_garbage_collector(how):
    data = ps.from_sequence(range(6)).map(large, on="process", workers=1)
    with no_collector():
        before = mapped_bytes()
        loader = data.loader()
        if how == "started":
            loader.start()
            await_true(lambda: mapped_bytes() > before, "a block")
        elif how == "read from":
            next(iter(loader))
        else:
            assert sum(1 for _ in loader) == 6  # the next epoch is begun by now
        assert mapped_bytes() > before
        del loader
        await_true(lambda: mapped_bytes() <= before, "the end of all blocks")


def test_a_closed_loader_leaves_no_blocks_in_the_processes_of_its_pool():
    with ps.Processes(1) as pool, no_collector():
        before = mapped_bytes()
        loader = ps.from_sequence(range(8)).map(large, on=pool).loader(epochs=1)
        kept = next(iter(loader))
        (worker,) = pool.live.workers
        maps = Path(f"/proc/{worker.process.pid}/maps")
        assert maps.read_text().count("memfd:penstock") > 1
        loader.close()
        # All but the page that it writes notes to.
        await_true(lambda: maps.read_text().count("memfd:penstock") == 1, "the end of the blocks in the process")
        assert mapped_bytes() > before
        assert (kept == 0).all()
        del kept
        assert mapped_bytes() == before
