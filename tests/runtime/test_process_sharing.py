"""Data of the parent is in memory once, however many worker processes read it.

Memory is that of the whole tree of processes: the sum of their proportional shares (PSS), in which a page that
three processes share counts once. Pages of files do not count: how many share them depends on what else runs.
Each case runs in an interpreter of its own, where nothing else moves.

What a worker has in hand counts, too, and how large its tickets are depends on its speed: where a bound is close,
``prefetch(1)`` keeps them small.
"""

import json
import os
import textwrap

import numpy as np
import pytest
from tests import nursery
from tests.cases import for_each

import penstock as ps

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="only Linux tells the PSS"),
]

PRELUDE = """
import gc, json, os, sys
import numpy as np
import penstock as ps
from penstock.executors.startup import keep_warm
from penstock.program.sizing import Sizer

(server := keep_warm()).__enter__()  # one for all loaders, so that its own memory is no difference between them
Sizer.record = lambda *_: None  # tickets of one size, however fast the workers are


def tree(pid):
    '''A process and all below it.'''
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in file.read().split():
                found += tree(int(child))
    return found


def memory(*kinds):
    '''Bytes of the tree that are not in files.'''
    total = 0
    for pid in tree(os.getpid()):
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.split(":")[0] in (kinds or ("Pss_Anon", "Pss_Shmem")):
                    total += 1024 * int(line.split()[1])
    return total


def descriptors():
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in tree(os.getpid()))


def steady(pipeline, *kinds, batches=None):
    '''The memory of the tree after two epochs, with the loader alive.'''
    with pipeline.loader() as loader:
        for _ in range(2):
            for number, _ in enumerate(loader):
                if number == batches:
                    break
        gc.collect()
        return memory(*kinds)
"""


def run(code):
    """What a script says, in a process of its own."""
    done = nursery.run(textwrap.dedent(PRELUDE) + textwrap.dedent(code), timeout_s=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_heap_array_is_copied_once_for_all_workers():
    grown, nbytes = run("""
    def pipeline(rows):
        data = ps.from_arrays(rows).shuffle()
        data = data.map(lambda row: int(row[0]) + int(row[-1]), on="process", workers=3)
        return data.batch(10).prefetch(1)

    small = steady(pipeline(np.ones((2000, 5))))
    rows = np.ones((2000, 4000))            # 64 MB, all of it read by one worker or the other
    print(json.dumps([steady(pipeline(rows)) - small, rows.nbytes]))
    """)
    # The user's own, and one copy for all workers; a copy for each would be four times as much.
    assert 1.95 * nbytes < grown < 2.05 * nbytes


def test_pipelines_over_the_same_array_share_its_copy():
    grown, nbytes = run("""
    rows = np.ones((2000, 5000))
    data = ps.from_arrays(rows).map(lambda row: float(row.sum()), on="process", workers=2)
    with data.batch(10).prefetch(1).loader() as one:
        list(one)
        before = memory()
        with data.shuffle().batch(5).prefetch(1).loader() as other, data.take(500).loader() as third:
            list(other), list(third), list(one)
            print(json.dumps([memory() - before, rows.nbytes]))
    """)
    assert grown < 0.5 * nbytes  # four more processes, and no other copy of 80 MB


def test_a_memmap_is_opened_again_and_not_copied(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.ones((8000, 1000)))  # short rows: what workers have in hand of them is little
    grown, nbytes = run(f"""
    def pipeline(rows):
        data = ps.from_arrays(rows).shuffle().map(lambda row: float(row.sum()), on="process", workers=2)
        return data.batch(10).prefetch(1)

    small = steady(pipeline(np.ones((8000, 5))))
    rows = np.load({str(path)!r}, mmap_mode="r")
    print(json.dumps([steady(pipeline(rows)) - small, rows.nbytes]))
    """)
    assert grown < 0.02 * nbytes


def test_a_long_list_of_strings_is_read_here_and_not_copied_into_the_workers():
    grown, nbytes = run("""
    def pipeline(names, times):
        data = ps.from_sequence(names).repeat(times).shuffle()
        return data.map(lambda name: len(name), on="process", workers=2).batch(1000)

    before = memory()
    names = [f"train/class-{number % 1000:04d}/image-{number:08d}.jpg" for number in range(500_000)]
    nbytes = memory() - before
    short = steady(pipeline(names[:5000], 100), batches=20)
    print(json.dumps([steady(pipeline(names, 1), batches=20) - short, nbytes]))
    """)
    assert nbytes > 40e6
    assert grown < 0.1 * nbytes  # each copy would be 1.0


def test_arrays_of_a_long_list_are_read_here_too():
    grown, nbytes = run("""
    def pipeline(rows, times):
        data = ps.from_sequence(rows).repeat(times).shuffle()
        return data.map(lambda row: row.sum(), on="process", workers=2).batch(100)

    rows = [np.full(100, number) for number in range(50_000)]           # 40 MB, and as much again as objects
    short = steady(pipeline(rows[:1000], 50), batches=50)
    print(json.dumps([steady(pipeline(rows, 1), batches=50) - short, sum(row.nbytes for row in rows)]))
    """)
    assert grown < 0.1 * nbytes  # what is on its way, and no copy of the whole


def test_memory_and_descriptors_are_flat_over_many_epochs():
    found = run("""
    rows = np.ones((40, 20_000))
    data = ps.from_arrays(rows).shuffle().map(lambda row: row * 2, on="process", workers=2).batch(4)
    counts, sizes = [], []     # how much is in flight at the end of an epoch is chance, so look at many ends
    with data.loader() as loader:
        for epoch in range(60):
            for batch in loader:
                assert batch[0, 0] == 2
            del batch
            counts.append(descriptors())
            if epoch % 5 == 4:
                gc.collect()
                sizes.append(memory("Pss_Anon"))
        shared = memory("Pss_Shmem")
    print(json.dumps([max(sizes[1:5]), min(sizes[-4:]), shared, max(counts[10:30]), min(counts[45:])]))
    """)
    early, late, shared, most, least = found
    assert late < early + 8e6
    assert shared < 60e6  # batches of 0.6 MB, and some room to spare
    assert least <= most + 2  # a block more or less is chance; one left behind in every epoch would be 15


def test_memory_is_flat_over_a_long_stream_of_samples_of_many_sizes():
    found = run("""
    def stream():
        for number in range(400):
            yield np.ones(1 + (number * 7919) % 20_000)

    data = ps.from_iterable(stream).map(lambda row: np.append(row, 1.0), on="process", workers=2)
    counts, sizes = [], []     # the fewest and the most descriptors of each epoch
    with data.loader() as loader:
        for epoch in range(40):
            seen = []
            for number, sample in enumerate(loader):
                if number % 20 == 19:
                    seen.append(descriptors())
            del sample
            gc.collect()
            sizes.append(memory("Pss_Anon"))
            counts.append((min(seen), max(seen)))
            # How many blocks there are depends on how many results had to wait for a late one. They become fewer
            # again; descriptors that are left behind do not.
            if epoch >= 3 and min(counts[-1]) <= max(counts[0] + counts[1]) and sizes[-1] < max(sizes[:2]) + 8e6:
                break
        shared = memory("Pss_Shmem")
    print(json.dumps([epoch, shared]))
    """)
    epochs, shared = found
    assert epochs < 39
    assert shared < 150e6  # blocks are kept for a while, and come in many sizes here


# ---------------------------------------------------------------------- what explain() says


def explained(pipeline):
    return str(pipeline.map(str, on="process", workers=2).explain())


def test_explain_says_that_worker_processes_read_for_themselves():
    text = explained(ps.from_sequence(range(10**9)))
    assert "worker processes read their own samples; only positions reach them" in text
    assert "2 processes" in text
    assert "shared memory" not in text


def test_explain_says_that_arrays_are_copied_into_shared_memory_once(tmp_path):
    text = explained(ps.from_arrays(np.zeros((2000, 1000)), np.zeros(2000)))
    assert "16 MB of arrays are copied into shared memory once; all processes look at that" in text
    assert "shared memory" not in explained(ps.from_arrays(np.zeros(100)))
    np.save(tmp_path / "x.npy", np.zeros(1_000_000))
    assert "shared memory" not in explained(ps.from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r")))


@for_each("kind", [list, tuple])
def test_explain_says_that_a_long_list_is_read_here(kind):
    names = kind([f"name-{number}" for number in range(200_000)])
    for pipeline in (ps.from_sequence(names), ps.from_arrays({"name": names})):
        text = explained(pipeline)
        assert f"a {kind.__name__} of 200,000 items, about" in text
        assert "is read here; its items travel with the tickets" in text
    assert "read here" not in explained(ps.from_sequence(names[:100]))


def test_explain_says_that_a_stream_is_read_here():
    text = explained(ps.from_iterable(lambda: range(5)))
    assert "the stream is read here, by one thread, and not in the worker processes" in text
    assert "samples reach the worker processes through shared memory" in text


def test_explain_says_nothing_of_processes_where_there_are_none():
    text = str(ps.from_arrays(np.zeros((2000, 1000))).map(str, workers=2).explain())
    assert "process" not in text
