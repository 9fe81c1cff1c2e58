"""difference: whether two samples are the same, down to every leaf."""

import threading
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
from tests.cases import for_each

from penstock.testing import difference

Point = namedtuple("Point", "x y")


@dataclass
class Record:
    x: object


class Thing:
    """Does not say when two of them are equal."""

    def __init__(self, x):
        self.x = x

    def __repr__(self):
        return "<thing>"


LOCK = threading.Lock()


@for_each(
    "one, other",
    [
        (float("nan"), float("nan")),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
        (Thing(1), Thing(1)),
        (Thing([Thing(np.zeros(2))]), Thing([Thing(np.zeros(2))])),
        (ValueError("a", 1), ValueError("a", 1)),
        (Point(1, Thing(2)), Point(1, Thing(2))),
        (LOCK, LOCK),
        (len, len),
    ],
)
def test_what_is_made_of_the_same_is_the_same(one, other):
    assert difference(one, other) is None


@for_each(
    "one, other",
    [
        (1, 1.0),
        (True, 1),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Thing(1), Thing(2)),
        (Thing(np.zeros(2)), Thing(np.zeros(3))),
        (ValueError("a"), ValueError("b")),
        (Record(1), Record(2)),
        (np.zeros(2, "f4"), np.zeros(2, "f8")),
        (threading.Lock(), threading.Lock()),
    ],
)
def test_what_differs_anywhere_is_not(one, other):
    assert difference(one, other, "it").startswith("it")
