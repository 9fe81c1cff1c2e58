"""check_resume accepts what can be resumed, and says what is wrong with what cannot."""

import itertools
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

import penstock as ps
from penstock.ops.joint import Joint
from penstock.ops.op import Effect, Op
from penstock.pipeline import Pipeline
from penstock.sources.source import IndexedSource, StreamSource
from penstock.testing import check_resume


class CountDown(Joint):
    """Leaves every third sample out; what it saves decides whether it can be resumed."""

    def __init__(self, saves):
        self.left = 2
        self.saves = saves

    def step(self, inputs, most):
        (source,) = inputs
        while source.count:
            samples, places = source.take(1)
            keep, self.left = self.left > 0, self.left - 1 if self.left else 2
            self.ended = source.ended and not source.count
            if keep:
                return samples, places
        self.ended = source.ended
        return [], []

    def save(self):
        return (
            self.left
            if self.saves == "all"
            else (None if self.saves == "nothing" else [number * 7919 % 10007 for number in range(9000)])
        )

    def restore(self, saved, held):
        if self.saves == "all":
            self.left = saved


@dataclass(frozen=True)
class TwoOfThree(Op[Any, Any]):
    saves: str = "all"

    verb = "two_of_three"
    effect: ClassVar[Effect] = Effect.PASSES

    def joint(self, key, epoch, memo):
        return CountDown(self.saves)

    def length(self, n):
        return None


def test_a_joint_that_saves_itself_passes():
    check_resume(ps.from_sequence(range(12)).apply(TwoOfThree()).batch(2))


def test_a_joint_that_forgets_to_save_itself_fails():
    with pytest.raises(AssertionError, match="resumed behind batch 1 with"):
        check_resume(ps.from_sequence(range(12)).apply(TwoOfThree("nothing")).batch(1))


def test_a_state_that_is_too_large_fails():
    with pytest.raises(AssertionError, match=r"takes \d+ bytes, more than 10000"):
        check_resume(ps.from_sequence(range(12)).apply(TwoOfThree("much")))


@dataclass(eq=False)
class Unsteady(IndexedSource):
    """Another sample every time that it is read."""

    calls: Any = field(default_factory=itertools.count)
    verb = "unsteady"

    def __len__(self):
        return 6

    def read(self, indices):
        return [(index, next(self.calls)) for index in indices]


def test_a_source_that_does_not_give_the_same_again_fails():
    with pytest.raises(AssertionError, match="resumed"):
        check_resume(Pipeline(Unsteady()))


class Forgetful(StreamSource):
    """Does not skip what it is told to skip."""

    verb = "forgetful"

    def shards(self):
        return ("a", "b")

    def open(self, shard, skip):
        return iter(range(4))


def test_a_stream_that_does_not_skip_fails():
    with pytest.raises(AssertionError, match="resumed behind batch 1 with"):
        check_resume(Pipeline(Forgetful()))


def test_a_function_that_goes_by_the_calls_before_fails():
    calls = itertools.count()
    with pytest.raises(AssertionError, match="resumed"):
        check_resume(ps.from_sequence(range(6)).map(lambda x: (x, next(calls))))


def test_a_sample_that_comes_twice_from_an_unordered_stage_is_named():
    seen = []

    def once(x):
        if x == 3 and len(seen) > 20:
            return 4
        seen.append(x)
        return x

    with pytest.raises(AssertionError, match="4 of epoch 0 came twice, or never before"):
        check_resume(ps.from_sequence(range(8)).map(once, workers=2, ordered=False), epochs=1)


def test_a_pipeline_without_samples_passes():
    check_resume(ps.from_sequence([]).batch(2))


def test_what_happens_in_another_process_is_told():
    here = os.getpid()

    def stays(x):
        if os.getpid() != here:
            raise RuntimeError("not here")
        return x

    with pytest.raises(AssertionError, match=r"the process that resumed failed:(.|\n)*not here"):
        check_resume(ps.from_sequence(range(4)).map(stays), fresh_process=True)
