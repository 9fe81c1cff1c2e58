"""Functions for any sample. In a file of their own: worker processes import it, and little else."""

from typing import Any

import numpy as np

import penstock as ps


def total(sample: Any) -> int:
    """A number that depends on everything in the sample, and on its order."""
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, (list, tuple, np.ndarray)):
        return sum((at + 1) * total(item) for at, item in enumerate(sample))
    return int(sample)


def number(sample):
    return (3 * total(sample) + 1) % 1009


def keep(sample):
    return total(sample) % 3 != 1


def several(sample):
    return [total(sample) + at for at in range(total(sample) % 3)]


def one_by_one(sample):
    yield from several(sample)


def leaving_out(sample):
    if total(sample) % 5 == 2:
        raise ps.Skip("on purpose")
    return number(sample)


def failing(sample):
    if total(sample) % 5 == 3:
        raise ValueError("cannot read this")
    return number(sample)


def ending(sample):
    if total(sample) % 11 == 7:
        raise KeyError("the end")
    return number(sample)


def drawing(sample, rng):
    return total(sample) + int(rng.integers(1000))


def telling(sample, info):
    return (total(sample), info.epoch, info.index, int(info.rng.integers(1000)))


def looking(sample):
    return None
