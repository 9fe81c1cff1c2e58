"""Datasets of torch for test_dataloader_idioms.py, which imports torch when a test first needs it."""

import torch
from torch.utils import data


class Images(data.Dataset):
    """Pairs of a small image and its class."""

    def __init__(self, n=20):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.full((2, 2), float(index)), index % 3


class Sentences(data.Dataset):
    """Token sequences of many lengths."""

    lengths = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.full((self.lengths[index],), index + 1)


class Range(data.IterableDataset):
    """The example of torch's documentation: each worker reads its own part of a range."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        info = data.get_worker_info()
        if info is None:
            return iter(range(self.start, self.end))
        each = -(-(self.end - self.start) // info.num_workers)
        first = self.start + info.id * each
        return iter(range(first, min(first + each, self.end)))


class Plain(data.IterableDataset):
    """Reads its whole range, whoever it is: for `worker_init_fn` to cut."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))
