"""Many small loaders at once, read, broken off, closed and dropped: none hangs, none leaves anything behind."""

import asyncio
import random
import threading
import time

import pytest
from tests.cases import for_each
from tests.helpers import in_threads
from tests.random_examples import seeds

import penstock as ps


def now_and_then(x):
    time.sleep(random.choice([0, 0, 0, 0.0002, 0.002]))
    return x


async def now_and_then_async(x):
    await asyncio.sleep(random.choice([0, 0, 0.0005]))
    return x


def made(rng, n):
    source = ps.from_sequence(range(n)) if rng.random() < 0.6 else ps.from_iterable(lambda: range(n))
    workers = rng.choice([1, 2, 7, 30])
    kind = rng.choice(["thread", "async", "both"])
    if kind == "thread":
        return source.map(now_and_then, workers=workers)
    if kind == "async":
        return source.map(now_and_then_async, on="async", workers=workers)
    mixed = source.map(now_and_then, workers=workers).map(now_and_then_async, on="async", workers=2)
    return mixed.map(now_and_then, workers=3)


def read_once(pipeline, rng, whole):
    assert list(pipeline) == whole


def break_off(pipeline, rng, whole):
    stop = rng.randrange(5)
    for number, _ in enumerate(pipeline):
        if number == stop:
            break


def read_epochs(pipeline, rng, whole):
    with pipeline.loader() as loader:
        assert [list(loader) for _ in range(3)] == [whole] * 3


def break_and_read_again(pipeline, rng, whole):
    with pipeline.loader() as loader:
        for _ in range(3):
            stop = rng.randrange(8)
            for number, _ in enumerate(loader):
                if number == stop:
                    break
        assert list(loader) == whole


def close_from_elsewhere(pipeline, rng, whole):
    loader = pipeline.loader()
    closing = threading.Timer(rng.random() * 0.01, loader.close)
    closing.start()
    try:
        for _ in range(3):
            list(loader)
    except ps.PenstockError:
        pass  # closed while it was read
    closing.join()


def drop(pipeline, rng, whole):
    next(iter(pipeline.loader()), None)


def start_ahead(pipeline, rng, whole):
    with pipeline.loader() as loader:
        loader.start()
        time.sleep(rng.random() * 0.005)
        assert list(loader) == whole


def nest(pipeline, rng, whole):
    outer = ps.from_sequence(range(5)).map(lambda _: sum(pipeline), workers=2)
    assert list(outer) == [sum(whole)] * 5


USES = [read_once, break_off, read_epochs, break_and_read_again, close_from_elsewhere, drop, start_ahead, nest]


@pytest.mark.fuzz
@for_each("seed", seeds(1))
def test_loaders_in_three_threads_do_not_disturb_each_other(seed):
    wrong = []

    def use(lane):
        rng = random.Random(f"{seed} {lane}")
        for _ in range(20):
            whole = list(range(rng.choice([0, 1, 3, 17, 100])))
            how = rng.choice(USES)
            try:
                how(made(rng, len(whole)), rng, whole)
            except BaseException as exc:
                wrong.append((how.__name__, exc))
                return

    in_threads(use, 3)
    assert not wrong
