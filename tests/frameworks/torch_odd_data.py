"""Odd datasets and samplers for test_odd_datasets.py, which imports torch when a test first needs it."""

import numpy as np
from torch.utils import data


class Echo(data.Dataset):
    """Returns the key it was asked for, as text."""

    def __len__(self):
        return 4

    def __getitem__(self, key):
        return repr(key)


class OnlySeveral(data.Dataset):
    """Reads lists of numbers and no single ones."""

    def __len__(self):
        return 5

    def __getitems__(self, numbers):
        return [number * 10 for number in numbers]


class Counting(data.Sampler):
    """A new order in each epoch, by a count of its own."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        yield from np.random.default_rng(self.epoch).permutation(4).tolist()

    def __len__(self):
        return 4


class Told(Counting):
    """The same, and told the epoch."""

    def set_epoch(self, epoch):
        self.epoch = epoch


class Scaled(data.DataLoader):
    """Changes batches where from_torch would not see it."""

    def __iter__(self):
        return (batch * 100 for batch in super().__iter__())


class Numbers(data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Distances(data.Dataset):
    """Fails for a key that it does not have."""

    rows = (3, 1, 4)

    def __len__(self):
        return 3

    def __getitem__(self, key):
        return self.rows[key]
