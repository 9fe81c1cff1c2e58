"""What a type checker says about a user's chain. Not run: read by mypy, see test_typing.py.

``is:`` gives the type that a line must reveal; ``error`` marks a line that must be refused.
"""

from collections.abc import Iterator
from typing import reveal_type

import numpy as np

import penstock as ps


def length(text: str) -> int:
    return len(text)


def half(number: int) -> float:
    return number / 2


def words(text: str) -> list[str]:
    return text.split()


def letters(text: str) -> Iterator[str]:
    yield from text


def noisy(number: float, rng: np.random.Generator) -> float:
    return number + rng.random()


def numbered(number: int, info: ps.SampleInfo) -> tuple[int, int]:
    return info.index, number


async def fetch(url: str) -> bytes:
    return url.encode()


def add(one: int, other: int) -> int:
    return one + other


def largest(numbers: list[int]) -> int:
    return max(numbers)


def doubled(pipeline: ps.Pipeline[int]) -> ps.Pipeline[float]:
    return pipeline.map(half)


def accepted() -> None:
    texts = ps.from_sequence(["a b", "c"])
    numbers = texts.map(length, workers=2)

    # sources
    reveal_type(texts)  # is: Pipeline[str]
    reveal_type(ps.from_sequence(range(3)))  # is: Pipeline[int]
    reveal_type(ps.from_sequence("abc"))  # is: Pipeline[str]
    reveal_type(ps.from_iterable([1.0, 2.0]))  # is: Pipeline[float]
    reveal_type(ps.from_iterable(lambda: iter([1])))  # is: Pipeline[int]
    reveal_type(ps.concat(numbers, numbers))  # is: Pipeline[int]

    # a chain follows the functions in it
    reveal_type(numbers)  # is: Pipeline[int]
    reveal_type(texts.map(length).map(half))  # is: Pipeline[float]
    reveal_type(texts.map(lambda text: text.upper()))  # is: Pipeline[str]
    reveal_type(numbers.map(half).map(noisy, rng=True))  # is: Pipeline[float]
    reveal_type(numbers.map(numbered, info=True))  # is: Pipeline[tuple[int, int]]
    reveal_type(texts.map(fetch, workers=8))  # is: Pipeline[bytes]
    reveal_type(numbers.map({1: "one", 2: "two"}))  # is: Pipeline[str]
    reveal_type(numbers.map(["zero", "one"]))  # is: Pipeline[str]
    reveal_type(ps.from_sequence([(1, 2)]).map(add, star=True))  # is: Pipeline[int]
    reveal_type(texts.map(ps.per_worker(lambda: length)))  # is: Pipeline[int]
    reveal_type(texts.flat_map(words))  # is: Pipeline[str]
    reveal_type(texts.flat_map(letters, interleave=2))  # is: Pipeline[str]
    reveal_type(numbers.batch(4, collate=largest))  # is: Pipeline[int]
    reveal_type(numbers.apply(doubled))  # is: Pipeline[float]

    # what keeps samples keeps their type
    reveal_type(numbers.filter(bool))  # is: Pipeline[int]
    reveal_type(numbers.tap(print))  # is: Pipeline[int]
    reveal_type(numbers.shuffle().take(3).skip(1).repeat(2).epoch(5).cache().prefetch(2))  # is: Pipeline[int]
    reveal_type(ps.from_sequence([{"x": 1}]).map(half, key="x"))  # is: Pipeline[dict[str, int]]

    # running
    for sample in numbers:
        reveal_type(sample)  # is: int
    with numbers.loader(seed=1) as loader:
        reveal_type(loader)  # is: Loader[int]
        for number in loader:
            reveal_type(number)  # is: int
        for epoch, samples in loader.epochs(2):
            reveal_type(epoch)  # is: int
            reveal_type(samples)  # is: Counted[int]
            reveal_type(len(samples))  # is: int
        for _, number in loader.steps(2):
            reveal_type(number)  # is: int


def refused(texts: ps.Pipeline[str], numbers: ps.Pipeline[int]) -> None:
    # a function that does not fit the op before it
    texts.map(length).map(length)  # error
    texts.map(half)  # error
    texts.map(fetch).map(length)  # error
    numbers.map(noisy)  # error
    numbers.map(half, rng=True)  # error
    texts.batch(4, collate=largest)  # error
    texts.apply(doubled)  # error

    # arguments that are none
    numbers.map(half, workers="many")  # error
    numbers.map(half, on_error="ignore")  # error
    numbers.batch("4")  # error
    numbers.take()  # error
    numbers.loader(sed=1)  # error
    numbers.mapp(half)  # error
