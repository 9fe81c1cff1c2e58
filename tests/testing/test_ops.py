"""check_op accepts every op of ours, and finds each kind of op that breaks the contract."""

import itertools
import math
import os
import threading
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock import ops
from penstock.ops.op import Effect
from penstock.testing import Layout, check_op
from penstock.testing import ops as checked
from penstock.testing.layouts import FEW_PROCESS_LAYOUTS, LAYOUTS

pytestmark = pytest.mark.usefixtures("warm_processes")


def double(x):
    return 2 * x


async def double_async(x):
    return 2 * x


def noisy(x, rng):
    return x + rng.random()


def skipping(x):
    if x % 3 == 1:
        raise ps.Skip("on purpose")
    return x


def failing(x):
    if x == 7:
        raise KeyError(x)
    return x


#: all that an op may be: asynchronous, random, failing, of another count or order, with a memory
GOOD = [
    ops.Map(double_async, workers=3),
    ops.Map(noisy, rng=True),
    ops.Map(failing),
    ops.FlatMap(range, interleave=3, workers=2),
    ops.Batch(3, drop_last=True),
    ops.Shuffle(4),
    ops.Cache(),
]
#: like one of the others, to the check: for the soak
MORE = [
    ops.Map(double),
    ops.Map(double, workers=2),
    ops.Map(double, ordered=False, workers=3),
    ops.Map(skipping),
    ops.Map(double_async),
    ops.Map({number: str(number) for number in range(20)}),
    ops.Map(failing, on_error="skip"),
    ops.Filter(bool),
    ops.FlatMap(range),
    ops.Tap(double),
    ops.Batch(3),
    ops.Shuffle(),
    ops.Repeat(),
    ops.Repeat(2),
    ops.Epoch(7),
    ops.Take(5),
    ops.SkipFirst(5),
    ops.Prefetch(3),
]


@for_each("op", GOOD)
def test_our_own_ops_pass(op):
    check_op(op, range(12))


@pytest.mark.soak
@for_each("op", [*GOOD, *MORE])
def test_our_own_ops_pass_on_more_samples(op):
    check_op(op, range(40))


def test_an_op_passes_on_all_layouts(monkeypatch):
    monkeypatch.setattr(checked, "_PLACES", 8)
    check_op(ops.FlatMap(range, interleave=3, workers=2), range(12), layouts=[*LAYOUTS, *FEW_PROCESS_LAYOUTS])


def test_unbatch_passes():
    check_op(ops.Unbatch(), [np.arange(size) for size in range(4)])


def test_a_function_from_pipeline_to_pipeline_passes():
    check_op(lambda pipeline: pipeline.map(double, workers=2).filter(bool).batch(3).repeat(2), range(8))


def test_other_layouts_can_be_asked_for():
    check_op(ops.Map(double), range(9), layouts=[Layout("thread", 2, memory="1kB", order=7)])


def test_all_layouts_of_processes_can_be_asked_for():
    check_op(ops.FlatMap(range, interleave=3), range(9), layouts=FEW_PROCESS_LAYOUTS)


# ---------------------------------------------------------------------- what cannot be sent to a process


def test_a_function_that_cannot_be_pickled_is_tried_on_threads_alone():
    lock = threading.Lock()

    def guarded(x):
        with lock:
            return x + 1

    check_op(ops.Map(guarded), range(9))
    check_op(lambda pipeline: pipeline.map(guarded, workers=2).batch(2), range(9))


def test_samples_that_cannot_be_pickled_are_tried_on_threads_alone():
    check_op(ops.Map(lambda lock: lock.locked()), [threading.Lock() for _ in range(9)])


class Thing:
    """Does not say when two of them are equal."""

    def __init__(self, x):
        self.x = x


def test_objects_that_come_back_as_copies_are_the_same_if_all_in_them_is():
    on_processes = FEW_PROCESS_LAYOUTS[:1]
    check_op(ops.Map(Thing), range(9), layouts=on_processes)
    check_op(ops.Filter(lambda thing: thing.x % 2), [Thing(x) for x in range(9)], layouts=on_processes)
    check_op(ops.Map(lambda x: ValueError(x)), range(9), layouts=on_processes)


# ---------------------------------------------------------------------- ops that break the contract


@dataclass(frozen=True)
class Bad(ops.Op):
    """The base of the broken ops below: passes samples on."""

    verb: ClassVar[str] = "bad"


@dataclass(frozen=True)
class Drops(Bad):
    """Says that it keeps the count."""

    effect: ClassVar[Effect] = Effect.EXPANDS

    def run(self, samples, info):
        return [[sample] if sample % 2 else [] for sample in samples]

    def length(self, n):
        return n


@dataclass(frozen=True)
class Invents(Bad):
    """Says that it only passes samples on."""

    effect: ClassVar[Effect] = Effect.PASSES

    def joint(self, key, epoch, memo):
        return Inventing()


class Inventing(ops.Joint):
    def step(self, inputs, most):
        (source,) = inputs
        samples, places = source.take(most)
        self.ended = source.ended and not source.count
        return [sample + 100 for sample in samples], places


@dataclass(frozen=True)
class WrongLength(ops.Take):
    """Says that it is longer than it is."""

    def length(self, n):
        return 1 + super().length(n)


@dataclass(frozen=True)
class Joined(ops.Take):
    """Its order and its joint do not agree."""

    def joint(self, key, epoch, memo):
        return ops.Take(self.n - 1).joint(key, epoch, memo)

    def length(self, n):
        return None


@dataclass
class NotFrozen(ops.Op):
    """Can be changed."""

    verb: ClassVar[str] = "not_frozen"


@dataclass(frozen=True)
class Nameless(Bad):
    """Has no label."""

    label = ""


class Place(Exception):
    pass


def test_an_op_that_depends_on_the_order_of_calls_is_found():
    numbers = itertools.count()
    with pytest.raises(
        AssertionError, match=r"over a sequence of 9, on 1 thread workers, epoch 0: sample 0: 0, then 18"
    ):
        check_op(ops.Map(lambda x: next(numbers)), range(9))


def test_an_op_that_changes_what_it_was_given_is_found():
    def add_one(array):
        array += 1
        return array

    with pytest.raises(AssertionError, match="sample 0"):
        check_op(ops.Map(add_one), [np.zeros(2), np.ones(2)])


def test_an_op_that_fails_in_one_place_only_is_found():
    calls = itertools.count()

    def sometimes(x):
        if next(calls) == 30:
            raise Place
        return x

    with pytest.raises(AssertionError, match=r"ended in Place\(\) instead of None"):
        check_op(ops.Map(sometimes), range(9))


def test_an_op_that_differs_in_another_process_is_found():
    here = os.getpid()
    with pytest.raises(AssertionError, match=r"on 2 process workers, epoch 0: sample 0: True, then False"):
        check_op(ops.Map(lambda x: os.getpid() == here), range(9))


@dataclass(frozen=True)
class Unpicklable(Bad):
    """Keeps something in its class's own way, which pickle does not know."""

    def __reduce__(self):
        raise NotImplementedError("no")


def test_an_op_that_cannot_be_pickled_although_what_it_was_given_can_is_found():
    with pytest.raises(AssertionError, match="although all its fields can: NotImplementedError"):
        check_op(Unpicklable(), range(3))


def test_a_wrong_length_is_found():
    with pytest.raises(
        AssertionError, match=r"take\(4\) over a sequence of 9: length\(\) says 5, but epoch 0 has 4"
    ):
        check_op(WrongLength(4), range(9))


def test_an_order_and_a_joint_that_disagree_are_found():
    with pytest.raises(AssertionError, match=r"by position .* then as samples pass .* 4 samples, then 3"):
        check_op(Joined(4), range(9))


def test_samples_made_up_by_an_op_that_only_passes_them_are_found():
    with pytest.raises(AssertionError, match="it PASSES samples, but 100 is not one of them"):
        check_op(Invents(), range(9))


def test_an_op_that_is_not_frozen_is_found():
    with pytest.raises(AssertionError, match="NotFrozen must be a dataclass with frozen=True"):
        check_op(NotFrozen(), range(3))


def test_an_op_without_a_label_is_found():
    with pytest.raises(AssertionError, match="label must be one line of text, got ''"):
        check_op(Nameless(), range(3))


def test_the_length_of_an_op_that_varies_the_count_is_not_relied_on():
    check_op(Drops(), range(9))


def test_an_endless_op_is_read_for_a_while():
    assert ops.Repeat().length(3) == math.inf
    check_op(ops.Repeat(), range(3))


def test_a_layout_with_a_memory_bound_runs_a_pipeline_with_a_cache_in_a_folder(tmp_path):
    data = ps.from_sequence(range(5)).map(double).cache(tmp_path)
    assert Layout("thread", 2, memory=1).run(data).epochs == [[0, 2, 4, 6, 8]] * 2
