"""Iterating a Pipeline is always epoch 0: whoever iterates one that shuffles or draws again is told so, once."""

import pickle

import pytest

import penstock as ps


def numbers():
    return ps.from_sequence(range(6))


def noisy(x, rng):
    return x + rng.random()


RANDOM = {
    "shuffle": (lambda: numbers().shuffle().batch(2), r"shuffle\(\)"),
    "window": (lambda: numbers().shuffle(window=4), r"shuffle\(window=4\)"),
    "resample": (lambda: numbers().resample([1] * 6), "resample"),
    "rng": (lambda: numbers().map(noisy, rng=True), r"map\(noisy\)"),
    "global": (lambda: numbers().map(abs, rng="global"), r"map\(abs\)"),
    "reservoir": (lambda: numbers().reservoir(4), "reservoir"),
    "mix": (lambda: ps.mix({"a": numbers(), "b": numbers()}), "mix"),
    "a part": (lambda: ps.zip(numbers(), numbers().shuffle()), r"shuffle\(\)"),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_the_second_pass_warns_once_and_names_the_loader(kind):
    make, named = RANDOM[kind]
    pipeline = make()
    first = list(pipeline)
    with pytest.warns(RuntimeWarning, match=rf"always epoch 0, so {named}.*pipeline\.loader\(\)") as told:
        second = list(pipeline)
    assert told[0].filename == __file__
    assert len(first) == len(second)
    list(pipeline)
    list(make())


def test_the_passes_are_the_same():
    pipeline = numbers().shuffle()
    first = list(pipeline)
    with pytest.warns(RuntimeWarning, match="epoch 0"):
        assert list(pipeline) == first


def test_a_pass_that_was_broken_off_counts():
    pipeline = numbers().shuffle()
    for number, _ in enumerate(pipeline):
        if number == 2:
            break
    with pytest.warns(RuntimeWarning, match="epoch 0"):
        list(pipeline)


def test_what_has_one_order_does_not_warn():
    for pipeline in (numbers().batch(2), ps.concat(numbers(), numbers()), numbers().map(abs, workers=2).epoch(4)):
        assert len({str(list(pipeline)) for _ in range(3)}) == 1


def test_a_look_at_the_first_batch_and_what_only_looks_do_not_count():
    pipeline = numbers().shuffle().batch(2)
    for _ in range(3):
        next(iter(pipeline))
        pipeline.peek()
        pipeline.fingerprint()
        len(pipeline)
    list(pipeline)


def test_two_passes_at_once_do_not_warn():
    pipeline = numbers().shuffle()
    assert all(one == other for one, other in zip(pipeline, pipeline, strict=True))


def test_a_copy_begins_anew_and_is_still_equal():
    pipeline = numbers().shuffle()
    list(pipeline)
    copy = pickle.loads(pickle.dumps(pipeline))
    list(copy)
    assert copy.ops == pipeline.ops
