"""Datasets of torch for test_torch_workers.py, which imports torch when a test first needs it."""

import random
import time

import numpy as np
import torch
from tests.runtime.helpers import SOON_S
from torch.utils import data


class Noisy(data.Dataset):
    """Draws from all three global generators."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


class WhoReads(data.Dataset):
    """Which worker reads each sample, and what it was told before."""

    told = None

    def __len__(self):
        return 40

    def __getitem__(self, index):
        info = data.get_worker_info()
        return index, info.id, info.num_workers, info.dataset is self, WhoReads.told


class Meeting(data.Dataset):
    """Says what each worker was seeded with; the first sample waits until another worker has read one."""

    seeded = None

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 8

    def __getitem__(self, index):
        worker = data.get_worker_info()
        (self.folder / str(worker.id)).touch()
        until = time.monotonic() + SOON_S
        while index == 0 and len(list(self.folder.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.001)
        return worker.id, worker.seed, Meeting.seeded, random.random()


class Sharded(data.IterableDataset):
    """Each worker reads every n-th number, as torch's documentation does it; some parts are longer than others."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.n, step)


class NoisyStream(Sharded):
    def __iter__(self):
        for number in super().__iter__():
            yield number, random.random(), float(torch.rand(()))
