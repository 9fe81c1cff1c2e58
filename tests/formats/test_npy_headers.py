"""Headers of ``.npy`` files are read by many threads at once."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from penstock.formats.npy import header_length, npy_bytes, npy_header


class Cycle:
    """Garbage whose finalizer runs Python code, in which another thread may get its turn."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        for _ in range(50):
            pass


def test_threads_may_read_headers_at_once():
    # Python 3.11 counts the depth of what `ast` builds once for all threads, and fails if one breaks in on another.
    files = [npy_bytes(np.zeros((rows, 3), "f4")) for rows in range(500)]
    heads = [data[: header_length(data[:12])] for data in files]
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(10)

    def parse(head, depth):
        if depth:
            return parse(head, depth - 1)
        Cycle()
        return npy_header(head)

    try:
        for _ in range(4):
            npy_header.cache_clear()
            with ThreadPoolExecutor(4) as threads:
                found = list(threads.map(parse, heads, [k % 4 * 3 for k in range(len(heads))]))
            assert [shape for _, _, shape in found] == [(rows, 3) for rows in range(500)]
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
