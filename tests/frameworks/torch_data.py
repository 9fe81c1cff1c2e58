"""Datasets and samplers of torch for the tests beside it, which import torch when a test first needs it."""

import random

import numpy as np
import torch
from torch.utils import data


class Squares(data.Dataset):
    """A map-style dataset that counts its reads."""

    def __init__(self, n=20):
        self.n = n
        self.read = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        return {"x": torch.full((3,), float(index)), "y": index * index, "name": f"s{index}"}


class Noisy(data.Dataset):
    """Draws from all three global generators."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


class Count(data.IterableDataset):
    def __init__(self, n=20):
        self.n = n

    def __iter__(self):
        yield from range(self.n)


class Stateful(data.IterableDataset):
    """Says where it stands, and counts what it reads."""

    def __init__(self, n=100):
        self.n = n
        self.at = 0
        self.read = 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            self.read += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class StatefulIterator:
    def __init__(self, n, log):
        self.n, self.at, self.log = n, 0, log

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        self.log.append(self.at - 1)
        return self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OfIterators(data.IterableDataset):
    def __init__(self):
        self.log = []

    def __iter__(self):
        return StatefulIterator(100, self.log)


class Evens(data.Sampler):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(0, self.n, 2))

    def __len__(self):
        return self.n // 2
