"""How many bytes a state takes, for the pipelines whose states are largest."""

import json

import pytest
from tests.cases import for_each

import penstock as ps

SMALL = 10_000


def state_bytes(pipeline, batches):
    with pipeline.loader(seed=1, epochs=1) as loader:
        handed = iter(loader)
        for _ in range(batches):
            next(handed)
        return len(json.dumps(loader.state_dict()))


def numbers(count):
    return ps.from_sequence(range(count))


def one_in_ten_fails(number):
    if number % 10 == 3:
        raise ValueError(number)
    return number


def scattered(number):
    return number * 2654435761 % 2**32 // 2**25


def one_in_500(number):
    return 9 if number % 500 == 0 else number % 2


def two_parts(count):
    return ps.mix({"a": (numbers(count), 0.7), "b": (numbers(count), 0.3)}, stop="all")


def several(number):
    return [number] * (number % 3)


WINDOWS = {
    "a tenth is lost": lambda n: numbers(2 * n).map(one_in_ten_fails, on_error="skip"),
    "a tenth is filtered": lambda n: numbers(2 * n).filter(lambda number: number % 10 != 3),
    "a mix": two_parts,
    "passes of a repeat": lambda n: numbers(n // 2).filter(lambda number: number % 10 != 3).repeat(4),
    "several of one": lambda n: numbers(2 * n).flat_map(several),
}


def test_batches_cut_behind_another_stage_have_a_small_state_after_each_of_them():
    batches = numbers(12_800).map(abs, workers=1).map(abs, workers=1).batch(64)
    with batches.loader() as loader:
        assert max(len(json.dumps(loader.state_dict())) for _ in loader) < 1_000


@for_each("name", WINDOWS)
def test_a_window_has_a_small_state(name):
    assert state_bytes(WINDOWS[name](5_000).shuffle(window=5_000).batch(100), 20) < SMALL // 2


@pytest.mark.soak
@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_of_50_000_has_a_small_state(name):
    assert state_bytes(WINDOWS[name](50_000).shuffle(window=50_000).batch(1_000), 20) < SMALL


OTHERS = {
    "buckets": lambda: (numbers(9_000).bucket(scattered, [32, 64, 96], size=64), 100),
    "a rare bucket": lambda: (numbers(15_000).bucket(one_in_500, [0, 1], size=64), 200),
    "buckets of a mix": lambda: (two_parts(5_000).bucket(scattered, [32, 64, 96], size=64), 100),
    "overtaken samples": lambda: (numbers(2_000).map(abs, workers=4, ordered=False).prefetch(200), 500),
}


@for_each("name", OTHERS)
def test_what_waits_has_a_small_state(name):
    pipeline, batches = OTHERS[name]()
    assert state_bytes(pipeline, batches) < SMALL


GROUPS = {
    "batches": lambda n: numbers(50 * n).filter(bool).batch(32),
    "buckets": lambda n: numbers(50 * n).bucket(scattered, [32, 64, 96], size=32),
    "batches of a mix": lambda n: two_parts(50 * n).batch(32),
    "batches of a window": lambda n: numbers(50 * n).filter(bool).shuffle(window=1_000).batch(32),
    "batches of several of one": lambda n: numbers(50 * n).flat_map(several).batch(32),
}


@for_each("name", GROUPS)
def test_a_window_over_groups_has_a_state_as_large_as_explain_says(name):
    for window in (20, 100):
        pipeline = GROUPS[name](window).shuffle(window=window)
        said = f"names the {32 * window:,} samples in the {window} groups of a block: up to about "
        assert said in pipeline.explain()
        kilobytes = int(pipeline.explain().split(said)[1].split()[0])
        assert state_bytes(pipeline, window // 4) < 1_000 * kilobytes + 1_000
