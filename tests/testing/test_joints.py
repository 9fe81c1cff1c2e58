"""check_op finds a joint that calls the user's code, never ends, saves ever more or breaks its contract."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.cases import for_each

from penstock import ops
from penstock.ops import Effect, Joint
from penstock.testing import check_op
from penstock.testing import joints as checked
from penstock.testing.joints import check_joint

pytestmark = pytest.mark.usefixtures("warm_processes")


class Passes(Joint):
    """A joint without a fault: the faulty ones change one thing."""

    def step(self, inputs, most):
        (source,) = inputs
        samples, places = source.take(most)
        self.ended = source.ended and not source.count
        return samples, places


@dataclass(frozen=True)
class Through(ops.Op[Any, Any]):
    """Passes samples through the joint that it is given."""

    kind: type[Joint]

    verb = "through"
    effect: ClassVar[Effect] = Effect.PASSES
    may_skip = True

    def joint(self, key, epoch, memo):
        return self.kind()


def test_a_joint_without_a_fault_passes():
    check_op(Through(Passes), range(9))


# ---------------------------------------------------------------------- a function of the user's in a joint


def odd(x):
    return x % 2


@dataclass(frozen=True)
class Chosen(Through):
    """Its joint calls the function of the user's that it is given."""

    kind: type[Joint] = Passes
    fn: Any = odd

    verb = "chosen"

    def joint(self, key, epoch, memo):
        return Choosing(self.fn)


class Choosing(Passes):
    per_output = 0

    def __init__(self, fn):
        self.fn = fn

    def step(self, inputs, most):
        samples, places = super().step(inputs, most)
        kept = self._kept(samples)
        return [samples[number] for number in kept], [places[number] for number in kept]

    def _kept(self, samples):
        return [number for number, sample in enumerate(samples) if self.fn(sample)]


def test_a_joint_that_calls_a_function_of_the_users_is_found():
    with pytest.raises(AssertionError, match="odd is called in its joint, Choosing, which runs under the lock"):
        check_op(Chosen(), range(9))


@dataclass(frozen=True)
class Measured(Chosen):
    """The same function, called by an op before the joint."""

    verb = "measured"

    @property
    def preceded_by(self):
        return (ops.Filter(self.fn),)

    def joint(self, key, epoch, memo):
        return Passes()


def test_a_function_that_an_op_before_the_joint_calls_is_no_fault():
    check_op(Measured(), range(9))


# ---------------------------------------------------------------------- a joint that never ends


class NeverEnds(Passes):
    def step(self, inputs, most):
        made = super().step(inputs, most)
        self.ended = False
        return made


class PassesForEver(Joint):
    """Repeats the last sample."""

    last = None

    def step(self, inputs, most):
        (source,) = inputs
        samples, places = source.take(1)
        if samples:
            self.last = samples, places
        samples, places = self.last or ([], [])
        return list(samples), list(places)


class StepForEver(Joint):
    def step(self, inputs, most):
        while True:
            pass


def test_a_joint_that_does_not_say_that_it_has_ended_is_found():
    with pytest.raises(AssertionError, match=r"the joint of through.* does not end"):
        check_op(Through(NeverEnds), range(9))


def test_a_joint_that_passes_samples_on_for_ever_is_found(monkeypatch):
    monkeypatch.setattr(checked, "_MOST", 4000)
    with pytest.raises(AssertionError, match="has passed on 4000 samples of 2000 and has not ended"):
        check_op(Through(PassesForEver), range(9))


def test_a_step_that_does_not_return_is_found(monkeypatch):
    monkeypatch.setattr(checked, "_LINES", 10_000)
    with pytest.raises(AssertionError, match="a step of its joint has run 10,000 lines and has not returned"):
        check_op(Through(StepForEver), range(9))


def test_an_op_that_goes_on_for_ever_and_says_so_is_no_fault():
    check_joint(ops.Repeat(), range(9))


# ---------------------------------------------------------------------- a state without a bound


class SavesAll(Passes):
    """Saves all that it has ever passed on."""

    def __init__(self):
        self.seen = []

    def step(self, inputs, most):
        samples, places = super().step(inputs, most)
        self.seen += samples
        return samples, places

    def save(self):
        return list(self.seen)

    def restore(self, saved, held):
        self.seen = list(saved)


class SavesFew(SavesAll):
    """Saves the last hundred."""

    def save(self):
        return self.seen[-100:]


def test_a_state_that_grows_without_a_bound_is_found():
    with pytest.raises(
        AssertionError, match=r"its state grows .*: \d+ bytes after 500, \d+ bytes after 1000, \d+ b"
    ):
        check_op(Through(SavesAll), range(9))


def test_a_state_with_a_bound_passes():
    check_op(Through(SavesFew), range(9))


@for_each("op", [ops.Shuffle(1500), ops.Pack(7, key=0, how="fit"), ops.Bucket(0, [2], size=1500), ops.Cache()])
def test_what_our_own_ops_save_has_a_bound(op):
    check_joint(op, [([1] * (number % 5),) for number in range(9)])


# ---------------------------------------------------------------------- wrong counts


class OnePlaceTooFew(Passes):
    def step(self, inputs, most):
        samples, places = super().step(inputs, most)
        return samples, places[:-1]


@dataclass(frozen=True)
class Fewer(ops.Op[Any, Any]):
    """Leaves the last result out."""

    effect: ClassVar[Effect] = Effect.KEEPS

    verb = "fewer"

    def run(self, samples, info):
        return samples[:-1]


@dataclass(frozen=True)
class FewerTruths(Fewer):
    effect: ClassVar[Effect] = Effect.SELECTS


@dataclass(frozen=True)
class FewerOutputs(Fewer):
    effect: ClassVar[Effect] = Effect.EXPANDS

    def run(self, samples, info):
        return [[sample] for sample in samples[:-1]]


def test_a_joint_with_more_samples_than_places_is_found():
    with pytest.raises(AssertionError, match=r"has returned \d samples and \d places; every sample has one"):
        check_op(Through(OnePlaceTooFew), range(9))


@for_each("op", [Fewer(), FewerTruths(), FewerOutputs()])
def test_an_op_with_fewer_results_than_samples_is_found(op):
    with pytest.raises(AssertionError, match=r"fewer\(\) gave \d results for \d samples"):
        check_op(op, range(9))


# ---------------------------------------------------------------------- what depends on who is faster


class ByMost(Passes):
    """Passes on the first sample that each step takes."""

    def step(self, inputs, most):
        samples, places = super().step(inputs, most)
        return samples[:1], places[:1]


class ByArrival(Passes):
    """Passes samples on in the reverse of the order in which they wait."""

    def step(self, inputs, most):
        samples, places = super().step(inputs, most)
        return samples[::-1], places[::-1]


@for_each("kind", [ByMost, ByArrival])
def test_a_joint_whose_outputs_depend_on_how_many_samples_wait_is_found(kind):
    with pytest.raises(AssertionError, match="depends on how many samples a step is asked for"):
        check_op(Through(kind), range(12))
